"""Runs of a service as observations: the results that benchmark clients write, through the queue to the machine."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.calibration.observed import CalibrationError, Observed, file_date
from explorer.engines.bench.reading import read_results
from explorer.engines.bench.run import Run, ServeRun
from explorer.evaluate import Case, Tables, timing
from explorer.request import Phase, Request
from explorer.service.engine import Engine, engine_for, engine_names, load_engine
from explorer.service.queue import Clients, Latency, aggregated
from explorer.service.steps import Steps, steps
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.cut import Cut, Scalar, cut_of
from layouts.layout import Layout

# An 80 % half-width in standard deviations, and the least that a client's mean repeats within.
_EIGHTY: Final = 1.2816
_LEAST: Final = 0.05
# Tokens of a prefill step at which it is priced; between them it is a straight line.
_CHUNKS: Final = 2.0 ** np.arange(6, 18)


@dataclass(frozen=True)
class Source:
    """Where runs were written, and what of it was not used."""

    file: str
    date: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What a server was told of its steps, None where its engine decides: tokens of a prefill step over all attention
    groups, and requests of a replica that may run at once."""

    chunk: int | None = None
    running: float | None = None


class Phases(eqx.Module):
    """What prices the steps of one phase of a replica, and what of them no curve changes."""

    case: Case
    tables: Tables
    cut: Cut
    values: Mapping[str, Float[np.ndarray, "runs loads"]]
    loads: Float[np.ndarray, " loads"]
    launches: Float[np.ndarray, "runs loads"]
    running: Float[np.ndarray, "runs loads"]

    def steps(self, machine: Machine) -> Steps:
        """Steps on a machine at every load, runs first."""
        latencies = (machine.curves.latency, machine.exchange.latency)
        none = tuple(jnp.zeros_like(column) for column in latencies)
        without = eqx.tree_at(lambda m: (m.curves.latency, m.exchange.latency), machine, none)
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), machine.anonymous(), without.anonymous())

        def gpu(machine: Machine, values: Mapping[str, Scalar]) -> Array:
            case = eqx.tree_at(lambda c: c.machine, self.case, machine)
            return timing(Exact(), self.tables, self.cut, case, values).gpu

        over_loads = jax.vmap(gpu, in_axes=(None, 0))
        whole, free = jax.vmap(jax.vmap(over_loads, in_axes=(None, 0)), in_axes=(0, None))(both, self.values)
        loads = jnp.broadcast_to(self.loads, whole.shape)
        return Steps(loads, whole, whole, whole, whole - free, self.launches, self.running)


class ServedRuns(Observed):
    """Runs of one instance: the time of an output token of each, then the times to the first token that are known.

    `place`: of each observation among both of all runs.
    """

    file: str = eqx.field(static=True)
    format: str = eqx.field(static=True)
    date: str = eqx.field(static=True)
    left_out: tuple[str, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    seconds: Float[np.ndarray, " observations"]
    widths: Float[np.ndarray, " observations"]
    place: np.ndarray
    engine: Engine
    clients: Clients
    decode: Phases
    prefill: Phases
    groups: Float[ArrayLike, ""]
    stages: Float[ArrayLike, ""]

    def latencies(self, machine: Machine, overhead: ArrayLike = 1.0) -> Latency:
        """What clients see of every run on a machine; `overhead` is a factor on the engine's own work in a step."""
        own = (jnp.asarray(self.engine.step) * overhead, jnp.asarray(self.engine.request) * overhead)
        engine = eqx.tree_at(lambda e: (e.step, e.request), self.engine, own)

        def one(clients: Clients, decode: Steps, prefill: Steps) -> Latency:
            return aggregated(engine, clients, decode, prefill, self.groups, self.stages)

        return jax.vmap(one)(self.clients, self.decode.steps(machine), self.prefill.steps(machine))

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        seen = self.latencies(machine, overhead)
        return jnp.concatenate([seen.tpot, seen.ttft])[self.place]


def read_served(
    path: str | pathlib.Path, request: Request, layout: Layout, engine: str | None = None
) -> list[ServedRuns]:
    """The runs of a file, those of one engine together; `engine` overrides what the file says of its backend.

    Raises MeshwrightError for an unknown engine, CalibrationError for a file in which no run can be used, with the
    reason of the first.
    """
    if engine is not None:
        load_engine(engine)
    results = read_results(path)
    reasons = {value.index: value.reason for value in results.left_out}
    runs = list[ServeRun]()
    for run in results.runs:
        reason = _unusable(run, request)
        if reason is not None:
            reasons[run.origin.index] = reason
        elif isinstance(run, ServeRun):
            runs.append(run)
    left_out = tuple(f"run {index}: {reasons[index]}" for index in sorted(reasons))
    if not runs:
        raise CalibrationError(f"{results.path.name}: no run can be used: {left_out[0]}")
    by_engine: dict[str, list[ServeRun]] = {}
    for run in runs:
        by_engine.setdefault(engine or engine_of(run.origin.backend), []).append(run)
    source = Source(results.path.name, file_date(results.path), left_out)
    return [served_runs(source, name, some, request, layout) for name, some in by_engine.items()]


def _unusable(run: Run, request: Request) -> str | None:
    """Why a run says nothing about the machine, if so."""
    if not isinstance(run, ServeRun):
        return "a batch without a service: give the results of a client that keeps requests in flight"
    if run.request_rate != math.inf:
        rate = "trace" if run.request_rate is None else run.request_rate
        return f"request_rate = {rate}: clients must wait for answers only, or fewer requests run than may"
    if run.max_concurrency is None:
        return "max_concurrency = None: must be a number above 0"
    if run.tpot.mean is None or run.output_tokens < 2:
        return "answers of one token have no time between tokens"
    return undrafted(run.accept_length, request)


def undrafted(accepted: float | None, request: Request) -> str | None:
    """Why a question does not draft what a run accepted a step, if so."""
    if accepted is None or accepted <= request.verify_width:
        return None
    width = math.ceil(accepted)
    return f"{accepted:.3g} tokens were accepted a step: give --draft, and --verify-width {width} or more as it ran"


def engine_of(backend: str) -> str:
    """An engine with parameters of its own whose name the backend begins with (`sglang-oai`), or the mean of them."""
    return next((name for name in engine_names() if backend.startswith(name)), backend or "unknown")


@in_x64
def served_runs(
    source: Source,
    engine_name: str,
    runs: Sequence[ServeRun],
    request: Request,
    layout: Layout,
    limits: Limits = Limits(),
) -> ServedRuns:
    """Runs of one engine, each with a known concurrency, as observations of a layout."""
    engine = limited(engine_for(engine_name), layout, limits)
    asked = np.array([run.concurrency for run in runs], np.float64)
    prompts = np.array([run.input_tokens for run in runs], np.float64)
    answers = np.array([run.output_tokens for run in runs], np.float64)
    shortest = np.array([1.0 if run.shortest is None else run.shortest for run in runs], np.float64)
    rounds = np.array([max(run.completed / c, 1.0) for run, c in zip(runs, asked, strict=True)], np.float64)
    accepted = np.array([run.accept_length or request.accept_length for run in runs], np.float64)
    batches = 2.0 ** np.arange(0, math.ceil(math.log2(max(float(asked.max()), 1.0))) + 2)
    decoding = replace(request, phase=Phase.DECODE)
    prefilling = replace(request, phase=Phase.PREFILL)
    # a prompt's tokens are cut like its heads where decode cuts those of the cache
    whole = replace(layout, dcp=1)
    tpots = [run.tpot.mean or 0.0 for run in runs]
    firsts = [i for i, run in enumerate(runs) if run.ttft.mean is not None]
    names = [f"{c:g} x {p:.0f} + {a:.0f}" for c, p, a in zip(asked, prompts, answers, strict=True)]
    spreads = np.array([engine.spread_tpot, engine.spread_ttft], np.float64)
    widths = np.maximum(spreads / _EIGHTY, _LEAST)
    return ServedRuns(
        file=source.file,
        format=f"{engine_name} results",
        date=source.date,
        left_out=source.left_out,
        names=(*(f"{name}: TPOT" for name in names), *(f"{names[i]}: TTFT" for i in firsts)),
        seconds=np.array([*tpots, *(runs[i].ttft.mean or 0.0 for i in firsts)]),
        widths=np.array([*[widths[0]] * len(runs), *[widths[1]] * len(firsts)]),
        place=np.array([*range(len(runs)), *(len(runs) + i for i in firsts)]),
        engine=engine.anonymous(),
        clients=Clients(
            requests=asked / layout.replicas,
            input_tokens=prompts,
            output_tokens=answers,
            accept=accepted,
            spread=2.0 * (1.0 - shortest) / (1.0 + shortest),
            rounds=max(round(float(np.median(rounds))), 2),
        ),
        decode=_phases(decoding, layout, batches, prompts + answers / 2.0, limits.running),
        prefill=_phases(prefilling, whole, _CHUNKS, prompts),
        groups=np.float64(layout.attn_dp),
        stages=np.float64(layout.pp),
    )


def limited(engine: Engine, layout: Layout, limits: Limits) -> Engine:
    """An engine whose prefill step holds as many tokens as the server was told."""
    if limits.chunk is None:
        return engine
    return replace(engine, chunk=limits.chunk // (layout.attn_dp if engine.chunk_by_group else 1))


def _phases(
    request: Request, layout: Layout, loads: np.ndarray, contexts: np.ndarray, most: float | None = None
) -> Phases:
    tables, cut, case = Tables(request.model, request.prefill, request.holding), cut_of(layout), request.case()
    at = [steps(request, layout, loads, context, tables) for context in contexts]
    launches, running = (np.stack([np.asarray(getattr(s, what)) for s in at]) for what in ("launches", "running"))
    values = jax.device_get(_values(case, tables, cut, loads, contexts))
    return Phases(case, tables, cut, values, loads, launches, np.minimum(running, np.inf if most is None else most))


@kept(COMPILE_TO_RUN_ONCE)
def _values(
    case: Case, tables: Tables, cut: Cut, loads: Float[np.ndarray, " loads"], contexts: Float[np.ndarray, " runs"]
) -> Mapping[str, Scalar]:
    """The quantities of every run at every load; a chunk is one replica's, a concurrency all replicas'."""
    of = (lambda c: c.load.chunk) if case.load.prefill else (lambda c: c.load.concurrency)
    share = 1.0 if case.load.prefill else cut.replicas

    def one(load: Array, context: Array) -> Mapping[str, Scalar]:
        at = eqx.tree_at(lambda c: (of(c), c.load.context), case, (load * share, context))
        return tables.values(Exact(), cut, at.load, at.machine)

    over_loads = jax.vmap(one, in_axes=(0, None))
    return jax.vmap(over_loads, in_axes=(None, 0))(jnp.asarray(loads), jnp.asarray(contexts))
