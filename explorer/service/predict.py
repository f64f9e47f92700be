"""A measured run's quantities predicted from what its source states, and nothing that was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import jax.numpy as jnp
import numpy as np

from explorer.fidelity.runs import Interval, Pool, Run
from explorer.request import Phase
from explorer.service.engine import Engine, engine_for
from explorer.service.pools import Priced, Refused, priced, question
from explorer.service.queue import Clients, Latency, decode_step, full_chunk, latency, prefill_step
from explorer.service.steps import Steps
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.programs import kept


@dataclass(frozen=True)
class Served:
    """A run ready for the queue: clients, and the steps of its pools. `workers`: of prefill and decode, where apart."""

    engine: Engine
    clients: Clients
    decode: Priced
    prefill: Priced
    workers: tuple[float, float] | None

    def latency(self, decode: Steps | None = None, prefill: Steps | None = None) -> Latency:
        """What a client sees, with these steps or with others of the same loads."""
        steps = (decode or self.decode.steps, prefill or self.prefill.steps)
        workers = None if self.workers is None else (np.float64(self.workers[0]), np.float64(self.workers[1]))
        inside = (np.float64(self.prefill.groups), np.float64(self.prefill.stages))
        return _latency(self.engine.anonymous(), self.clients, *steps, *inside, workers)


# Compiled once an engine's policy and mode: all runs share the shapes of their steps.
_latency = kept(COMPILE_TO_RUN_ONCE)(latency)


def served(run: Run) -> Served:
    """Price the pools of a run; raises MeshwrightError for what it does not state and for layouts that cannot be."""
    apart = run.prefill is not None and run.decode is not None
    decode = priced(question(run, run.decode or run.pool, Phase.DECODE))
    prefill = priced(question(run, run.prefill or run.pool, Phase.PREFILL))
    workers = _workers(run.prefill) * prefill.replicas, _workers(run.decode) * decode.replicas
    alike = 1.0 if apart else _workers(run.pool) * decode.replicas  # instances that serve their part of the requests
    capacity = float(decode.steps.capacity) * (workers[1] if apart else decode.replicas)
    if capacity < 1:
        raise Refused("the pool holds no request: weights and reserve leave no room for the KV of one")
    clients = Clients.drawing(
        requests=_requests(run, capacity) / alike,
        input_tokens=run.input_tokens or run.context or 1,
        output_tokens=run.output_tokens or 1,
        shortest=run.shortest,
        accept=run.accept_length or 1.0,
    )
    return Served(engine_for(run.engine), clients, decode, prefill, workers if apart else None)


def predict(run: Run) -> dict[str, Interval]:
    """What a run would measure, by quantity, each with its 80 % range; raises MeshwrightError with the reason."""
    known = _QUANTITIES[run.phase]
    if unknown := set(run.measured) - set(known):
        raise Refused(f"{', '.join(sorted(unknown))} in phase {run.phase} is not predicted: {', '.join(known)} are")
    found = served(run)
    wanted = [name for name in known if name in run.measured or not run.measured]
    return {name: known[name].interval(found) for name in wanted}


def _workers(pool: Pool | None) -> float:
    """Workers of a pool; one where the source leaves them blank."""
    return float((pool.workers if pool is not None else None) or 1)


def _requests(run: Run, capacity: float) -> float:
    """Requests in flight; a run that states its layout as text and no load is saturated. A batch size alone says how
    many may run, not how many came."""
    if run.concurrency is not None:
        return float(run.concurrency)
    if run.layout is not None:
        return capacity
    raise Refused("concurrency is not stated: a batch size says how many requests may run, not how many came")


def ranged(value: float, ends: Sequence[float], spread: float) -> Interval:
    """A value with its 80 % range: the values at the two ends of the machine's, in either order, and a half-width of
    the engine's own (a logarithm); both together as squares, as they are independent."""
    below, above = (float(np.hypot(np.log(end / value), spread)) for end in sorted(ends))
    return Interval(value, value * float(np.exp(-below)), value * float(np.exp(above)))


@dataclass(frozen=True)
class Quantity:
    """How one quantity follows from steps; `spread` names the engine's parameter in it."""

    of: Callable[[Served, Steps, Steps], float]
    spread: str

    @in_x64
    def interval(self, found: Served) -> Interval:
        """The value with its range: of the ops through the steps, and the engine's own."""
        d, p = found.decode.steps, found.prefill.steps
        ends = ((d, p), *((d.with_seconds(end), p.with_seconds(end)) for end in ("fast", "slow")))
        value, *others = (float(self.of(found, *steps)) for steps in ends)
        return ranged(value, others, float(getattr(found.engine, self.spread)))


def _tpot(found: Served, decode: Steps, prefill: Steps) -> float:
    return float(found.latency(decode, prefill).tpot)


def _ttft(found: Served, decode: Steps, prefill: Steps) -> float:
    return float(found.latency(decode, prefill).ttft)


def _step(found: Served, decode: Steps, prefill: Steps) -> float:
    """Seconds of a decode step with every request running that fits."""
    running = jnp.minimum(found.clients.requests, decode.capacity)
    return float(decode_step(found.engine, decode, running))


def _between_tokens(found: Served, decode: Steps, prefill: Steps) -> float:
    return float(_step(found, decode, prefill) / jnp.asarray(found.clients.accept))


def _output_rate(found: Served, decode: Steps, prefill: Steps) -> float:
    """Accepted tokens a second and GPU while clients keep asking."""
    latency = found.latency(decode, prefill)
    clients = found.clients
    seconds = latency.ttft + clients.output_tokens * latency.tpot
    return float(clients.requests * clients.output_tokens / seconds) / _gpus(found)


def _decode_rate(found: Served, decode: Steps, prefill: Steps) -> float:
    """Accepted tokens a second and GPU of decode alone."""
    running = jnp.minimum(found.clients.requests, decode.capacity)
    return float(running / _between_tokens(found, decode, prefill)) / found.decode.gpus


def _prompt_step(found: Served, decode: Steps, prefill: Steps) -> float:
    return float(prefill_step(found.engine, prefill, float(full_chunk(found.engine, found.prefill.groups))))


def _prompt_rate(found: Served, decode: Steps, prefill: Steps) -> float:
    """Prompt tokens a second and GPU of full chunks, one in each pipeline stage."""
    tokens = float(full_chunk(found.engine, found.prefill.groups)) * found.prefill.stages
    return tokens / _prompt_step(found, decode, prefill) / found.prefill.gpus


def _gpus(found: Served) -> float:
    if found.workers is None:
        return found.decode.gpus
    return found.prefill.gpus * found.workers[0] + found.decode.gpus * found.workers[1]


_TPOT, _TTFT = "spread_tpot", "spread_ttft"
_QUANTITIES: Final[Mapping[str, Mapping[str, Quantity]]] = MappingProxyType(
    {
        "serve": {
            "tpot": Quantity(_tpot, _TPOT),
            "ttft": Quantity(_ttft, _TTFT),
            "itl_median": Quantity(_between_tokens, _TPOT),
            "step": Quantity(_step, _TPOT),
            "tokens_per_second_per_gpu": Quantity(_output_rate, _TPOT),
        },
        "decode": {
            "step": Quantity(_step, _TPOT),
            "tpot": Quantity(_between_tokens, _TPOT),
            "tokens_per_second_per_gpu": Quantity(_decode_rate, _TPOT),
        },
        "prefill": {
            "step": Quantity(_prompt_step, _TTFT),
            "ttft": Quantity(_ttft, _TTFT),
            "tokens_per_second_per_gpu": Quantity(_prompt_rate, _TTFT),
        },
    }
)
