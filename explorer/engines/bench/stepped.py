"""Steps of a batch without a queue: what `vllm bench forward` and SGLang's one-batch benchmarks time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import equinox as eqx
import numpy as np

from explorer.calibration.served import limited, undrafted
from explorer.candidate import binding
from explorer.engines.bench.fields import Unusable
from explorer.engines.bench.predicted import TPOT, Prediction
from explorer.engines.bench.run import BatchRun, ForwardRun
from explorer.engines.bench.subject import Subject
from explorer.fidelity.runs import Interval
from explorer.priced import Priced, priced
from explorer.request import Phase, Request
from explorer.service.engine import Engine, engine_for
from explorer.service.predict import ranged
from explorer.service.queue import decode_step, full_chunk, prefill_step
from explorer.service.steps import Steps, steps
from hw.compat import in_x64
from layouts.layout import Layout

FORWARD, PREFILL_STEP, DECODE_STEP, LAST_TTFT = "forward", "prefill_step", "decode_step", "last_ttft"
_ENDS: Final = ("gpu", "fast", "slow")
_HEAD: Final = "tail"  # the block of final norm, head and sampling


@dataclass(frozen=True)
class _Step:
    """A step of one replica: requests that decode, or tokens of a prompt, over all attention groups; mean tokens of a
    request."""

    phase: Phase
    load: float
    context: float

    def request(self, asked: Request, layout: Layout) -> Request:
        """The question whose only step this is."""
        context = max(round(self.context), 1)
        if self.phase is Phase.PREFILL:
            return replace(asked, phase=self.phase, context=context, chunk=max(round(self.load), 1), concurrency=1)
        requests = max(round(self.load * layout.replicas), 1)
        return replace(asked, phase=self.phase, context=context, concurrency=requests)


@in_x64
def forward_prediction(subject: Subject, run: ForwardRun) -> Prediction:
    """Seconds of a forward pass in a captured graph, without the head, sampling and the CPU's work, as it is timed.

    Raises Unusable for what is no step of one phase here: prompts beside answers, several prompts that each continue
    an earlier chunk, rows of a request that the question does not verify.
    """
    step = _forward_step(subject, run)
    found, whole = _priced(subject, step)
    tail = [i for i, block in enumerate(whole.table.sequence) if whole.table.block_names[block] == _HEAD]
    rest = 1.0 - float(whole.schedule.main[np.array(tail)].sum()) / float(whole.schedule.gpu)
    alone = _without_host(engine_for(subject.engine))
    ends = [rest * float(decode_step(alone, at, step.load)) for at in _at_ends(found)]
    return Prediction({FORWARD: ranged(ends[0], ends[1:], 0.0)}, binding(whole))


def _forward_step(subject: Subject, run: ForwardRun) -> _Step:
    groups, request = subject.layout.attn_dp, subject.request
    if run.drafter is not None and run.drafter != (request.model.draft is not None):
        was = "beside its draft: name that with --draft" if run.drafter else "without its draft: give --draft none"
        raise Unusable(f"the model was timed {was}")
    if run.mixed:
        raise Unusable("prompts beside answers in one step are not predicted: give cases of either kind")
    if not run.prefill:
        width = max(run.rows)
        if min(run.rows) != width or width != request.verify_width:
            raise Unusable(f"{width} rows of a request were verified, not {request.verify_width}: give --verify-width")
        return _Step(Phase.DECODE, len(run.rows) * groups, float(np.mean(run.context)))
    if len(run.rows) > 1 and run.rows != run.context:
        raise Unusable("several prompts that each continue an earlier part are not predicted: give a case for each")
    # a chunk of Q tokens that ends at K sees what a chunk in the middle of a prompt of 2K - Q sees
    context = 2.0 * run.context[0] - run.rows[0] if len(run.rows) == 1 else float(np.mean(run.rows))
    return _Step(Phase.PREFILL, sum(run.rows) * groups, context)


@in_x64
def batch_prediction(subject: Subject, run: BatchRun) -> Prediction:
    """The prompts of a batch and its median decode step; behind a server, until the last first token and after it.

    Raises Unusable for drafts that the question does not have.
    """
    reason = undrafted(run.accept_length, subject.request)
    if reason is not None:
        raise Unusable(reason)
    # without a server every attention group is given the whole batch
    groups = 1 if run.served else subject.layout.attn_dp
    shared = subject.layout.replicas if run.served else 1
    requests = run.batch * groups / shared
    prompts = _Step(Phase.PREFILL, requests * run.input_tokens, float(run.input_tokens))
    answers = _Step(Phase.DECODE, requests, run.input_tokens + run.output_tokens / 2.0)
    engine = limited(engine_for(subject.engine), subject.layout, subject.limits)
    found, whole = _priced(subject, answers)
    names = (LAST_TTFT, TPOT) if run.served else (PREFILL_STEP, DECODE_STEP)
    quantities = {names[0]: _prompts(subject, engine, prompts, run.served)}
    if run.output_tokens > 1:
        accepted = (run.accept_length or subject.request.accept_length) if run.served else 1.0
        ends = [float(decode_step(engine, at, answers.load)) / accepted for at in _at_ends(found)]
        quantities[names[1]] = ranged(ends[0], ends[1:], float(np.asarray(engine.spread_tpot)))
    return Prediction(quantities, binding(whole))


def _prompts(subject: Subject, engine: Engine, step: _Step, served: bool) -> Interval:
    """Seconds of all prompts: in one step, or in full chunks one after the other behind a server."""
    layout = replace(subject.layout, dcp=1)
    full = float(full_chunk(engine, layout.attn_dp)) if served else step.load
    once = min(step.load, full)
    found = _steps(subject, replace(step, load=once), layout)
    each = (float(prefill_step(engine, at, once)) for at in _at_ends(found))
    arrival = float(np.asarray(engine.arrival)) if served else 0.0
    ends = [arrival + seconds * (1.0 + (step.load / once - 1.0) / layout.pp) for seconds in each]
    return ranged(ends[0], ends[1:], float(np.asarray(engine.spread_ttft)))


def _priced(subject: Subject, step: _Step) -> tuple[Steps, Priced]:
    """A step at its own load and beyond, and its parts."""
    layout = replace(subject.layout, dcp=1) if step.phase is Phase.PREFILL else subject.layout
    return _steps(subject, step, layout), priced(step.request(subject.request, layout), layout)


def _steps(subject: Subject, step: _Step, layout: Layout) -> Steps:
    request = replace(subject.request, phase=step.phase)
    return steps(request, layout, step.load * np.array([1.0, 2.0]), step.context)


def _at_ends(found: Steps) -> Iterator[Steps]:
    return (found.with_seconds(end) for end in _ENDS)


def _without_host(engine: Engine) -> Engine:
    """What is left of an engine in a graph that is replayed alone."""
    return eqx.tree_at(lambda e: (e.step, e.request), engine, (np.float64(0.0), np.float64(0.0)))
