"""Runs of a service as observations: the results that benchmark clients write, through the queue to the machine.

Fields: sglang's `bench_serving.py` (a line of JSON a run) and `vllm bench serve` (an object) name them alike:
`backend`, `max_concurrency`, `request_rate`, `completed`, `total_input_tokens`, `total_output_tokens`, `mean_ttft_ms`,
`mean_tpot_ms`; the former adds `random_range_ratio`, shortest over longest length.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.calibration.observed import CalibrationError, Observed, file_date
from explorer.evaluate import Case, Tables, timing
from explorer.request import Phase, Request
from explorer.service.engine import Engine, engine_for, engine_names, load_engine
from explorer.service.queue import Clients, aggregated
from explorer.service.steps import Steps, steps
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.cut import Cut, Scalar, cut_of
from layouts.layout import Layout

NEEDED: Final = ("max_concurrency", "completed", "total_input_tokens", "total_output_tokens", "mean_tpot_ms")
# An 80 % half-width in standard deviations, and the least that a client's mean repeats within.
_EIGHTY: Final = 1.2816
_LEAST: Final = 0.05
# Tokens of a prefill step at which it is priced; between them it is a straight line.
_CHUNKS: Final = 2.0 ** np.arange(6, 18)


class Run(NamedTuple):
    """One run: requests in flight, mean tokens in and out, shortest over longest length, requests a client, seconds."""

    backend: str
    concurrency: float
    input_tokens: float
    output_tokens: float
    shortest: float
    rounds: float
    tpot: float
    ttft: float | None


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

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        own = (jnp.asarray(self.engine.step) * overhead, jnp.asarray(self.engine.request) * overhead)
        engine = eqx.tree_at(lambda e: (e.step, e.request), self.engine, own)

        def one(clients: Clients, decode: Steps, prefill: Steps) -> Array:
            seen = aggregated(engine, clients, decode, prefill, self.groups, self.stages)
            return jnp.stack([seen.tpot, seen.ttft])

        both = jax.vmap(one)(self.clients, self.decode.steps(machine), self.prefill.steps(machine))
        return both.T.reshape(-1)[self.place]


def read_served(
    path: str | pathlib.Path, request: Request, layout: Layout, engine: str | None = None
) -> list[ServedRuns]:
    """The runs of a file, those of one engine together; `engine` overrides what the file says of its backend.

    Raises MeshwrightError for an unknown engine, CalibrationError for a file in which no run can be used, with the
    reason of the first.
    """
    file = pathlib.Path(path).expanduser()
    if engine is not None:
        load_engine(engine)
    runs, left_out = list[Run](), list[str]()
    for number, entry in enumerate(_entries(file)):
        reason = _unusable(entry)
        runs.append(_run(entry)) if reason is None else left_out.append(f"run {number}: {reason}")
    if not runs:
        raise CalibrationError(f"{file.name}: no run can be used: {left_out[0]}")
    by_engine: dict[str, list[Run]] = {}
    for run in runs:
        by_engine.setdefault(engine or _engine_of(run.backend), []).append(run)
    about = (file.name, file_date(file), tuple(left_out))
    return [_observed(about, name, some, request, layout) for name, some in by_engine.items()]


def _entries(file: pathlib.Path) -> list[Any]:
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    try:
        whole = (
            [json.loads(text)] if file.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
        )
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{file.name} is no JSON ({error}): give a benchmark's results, a run a line") from None
    return whole


def _unusable(entry: Any) -> str | None:
    """Why a run says nothing about the machine, if so."""
    if not isinstance(entry, Mapping):
        return "is no object"
    for name in NEEDED:
        value = entry.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            return f"{name} = {value!r}: must be a number above 0"
    if entry["total_output_tokens"] < 2 * entry["completed"]:
        return "answers of one token have no time between tokens"
    rate = entry.get("request_rate")
    if isinstance(rate, int | float) and rate < math.inf:
        return f"request_rate = {rate}: clients must wait for answers only, or fewer requests run than may"
    return None


def _run(entry: Mapping[str, Any]) -> Run:
    completed, ttft = entry["completed"], entry.get("mean_ttft_ms")
    ratio = entry.get("random_range_ratio")
    return Run(
        backend=str(entry.get("backend") or ""),
        concurrency=float(min(entry["max_concurrency"], completed)),
        input_tokens=entry["total_input_tokens"] / completed,
        output_tokens=entry["total_output_tokens"] / completed,
        shortest=min(max(float(ratio), 0.0), 1.0) if isinstance(ratio, int | float) else 1.0,
        rounds=max(completed / entry["max_concurrency"], 1.0),
        tpot=entry["mean_tpot_ms"] / 1e3,
        ttft=ttft / 1e3 if isinstance(ttft, int | float) and ttft > 0 else None,
    )


def _engine_of(backend: str) -> str:
    """An engine with parameters of its own whose name the backend begins with (`sglang-oai`), or the mean of them."""
    return next((name for name in engine_names() if backend.startswith(name)), backend or "unknown")


@in_x64
def _observed(
    about: tuple[str, str, tuple[str, ...]], engine_name: str, runs: Sequence[Run], request: Request, layout: Layout
) -> ServedRuns:
    file, date, left_out = about
    engine = engine_for(engine_name)
    column = {name: np.array([getattr(run, name) for run in runs], np.float64) for name in Run._fields[1:-1]}
    most = float(column["concurrency"].max())
    batches = 2.0 ** np.arange(0, math.ceil(math.log2(most)) + 2)
    prompts = column["input_tokens"]
    decoding = replace(request, phase=Phase.DECODE)
    prefilling = replace(request, phase=Phase.PREFILL)
    # a prompt's tokens are cut like its heads where decode cuts those of the cache
    whole = replace(layout, dcp=1)
    firsts = [i for i, run in enumerate(runs) if run.ttft is not None]
    names = [f"{run.concurrency:g} x {run.input_tokens:.0f} + {run.output_tokens:.0f}" for run in runs]
    spreads = np.array([engine.spread_tpot, engine.spread_ttft], np.float64)
    widths = np.maximum(spreads / _EIGHTY, _LEAST)
    return ServedRuns(
        file=file,
        format=f"{engine_name} results",
        date=date,
        left_out=left_out,
        names=(*(f"{name}: TPOT" for name in names), *(f"{names[i]}: TTFT" for i in firsts)),
        seconds=np.array([*(run.tpot for run in runs), *(runs[i].ttft or 0.0 for i in firsts)]),
        widths=np.array([*[widths[0]] * len(runs), *[widths[1]] * len(firsts)]),
        place=np.array([*range(len(runs)), *(len(runs) + i for i in firsts)]),
        engine=engine.anonymous(),
        clients=Clients(
            requests=column["concurrency"] / layout.replicas,
            input_tokens=prompts,
            output_tokens=column["output_tokens"],
            accept=np.full(len(runs), request.accept_length),
            spread=2.0 * (1.0 - column["shortest"]) / (1.0 + column["shortest"]),
            rounds=max(round(float(np.median(column["rounds"]))), 2),
        ),
        decode=_phases(decoding, layout, batches, prompts + column["output_tokens"] / 2.0),
        prefill=_phases(prefilling, whole, _CHUNKS, prompts),
        groups=np.float64(layout.attn_dp),
        stages=np.float64(layout.pp),
    )


def _phases(request: Request, layout: Layout, loads: np.ndarray, contexts: np.ndarray) -> Phases:
    tables, cut, case = Tables(request.model, request.prefill, request.holding), cut_of(layout), request.case()
    at = [steps(request, layout, loads, context, tables) for context in contexts]
    launches, running = (np.stack([np.asarray(getattr(s, what)) for s in at]) for what in ("launches", "running"))
    values = jax.device_get(_values(case, tables, cut, loads, contexts))
    return Phases(case, tables, cut, values, loads, launches, running)


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
