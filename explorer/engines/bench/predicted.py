"""What clients of a layout would have measured in the runs of a benchmark, all runs in one program."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from explorer.calibration.served import ServedRuns, Source, served_runs
from explorer.engines.bench.run import ServeRun
from explorer.engines.bench.subject import Subject
from explorer.fidelity.runs import Interval
from explorer.service.predict import ranged
from explorer.service.queue import Latency
from explorer.serving import KV, PREFILL, STEP
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept

TTFT, TPOT, RATE = "ttft", "tpot", "output_rate"
LIMIT: Final = "max_running_requests"
_LEAST: Final = 8  # runs of one program: it is compiled anew for each power of two beyond


@dataclass(frozen=True)
class Prediction:
    """Quantities of one run, each with its 80 % range, and what binds. Seconds; tokens a second."""

    quantities: dict[str, Interval]
    binding: str


@in_x64
def serve_predictions(subject: Subject, runs: Sequence[ServeRun]) -> list[Prediction]:
    """TTFT, TPOT and output rate of every run of one subject; each must have a known concurrency.

    A run at a request rate is predicted with as many requests in flight as there were on average.
    """
    padded = [*runs, *[runs[-1]] * (max(_LEAST, 1 << (len(runs) - 1).bit_length()) - len(runs))]
    seen = served_runs(Source("", ""), subject.engine, padded, subject.request, subject.layout, subject.limits)
    machine = subject.request.machine
    ends = (end.anonymous() for end in (machine, machine.faster(), machine.slower()))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ends)
    found = jax.device_get(_latencies(_bare(seen), stacked))
    return [_prediction(seen, subject, run, Latency(*(row[:, i] for row in found)), i) for i, run in enumerate(runs)]


def _bare(seen: ServedRuns) -> ServedRuns:
    """The numbers alone: files of any name share a program."""
    return replace(seen, file="", format="", date="", left_out=(), names=())


@kept(COMPILE_TO_RUN_ONCE)
def _latencies(seen: ServedRuns, machines: Machine) -> Latency:
    """A row for each of the machines, a column for each run."""
    return jax.vmap(seen.latencies)(machines)


def _prediction(seen: ServedRuns, subject: Subject, run: ServeRun, at: Latency, i: int) -> Prediction:
    tpots, ttfts = at.tpot, at.ttft
    requests = float(np.asarray(seen.clients.requests)[i]) * subject.layout.replicas
    rates = requests * run.output_tokens / (ttfts + run.output_tokens * tpots)
    between, first = (float(np.asarray(s)) for s in (seen.engine.spread_tpot, seen.engine.spread_ttft))
    columns = {TTFT: (ttfts, first), TPOT: (tpots, between), RATE: (rates, between)}
    quantities = {
        name: ranged(float(column[0]), [float(end) for end in column[1:]], spread)
        for name, (column, spread) in columns.items()
        if name != TPOT or run.output_tokens >= 2
    }
    return Prediction(quantities, _binding(seen, subject, i, float(at.prefill_share[0])))


def _binding(seen: ServedRuns, subject: Subject, i: int, prefill_share: float) -> str:
    """As many as may run or as the pools hold, prompts where they take most of the time, or else decode itself."""
    running = np.max(seen.decode.running[i])
    if np.asarray(seen.clients.requests)[i] > running:
        return LIMIT if running == subject.limits.running else KV
    return PREFILL if prefill_share > 0.5 else STEP
