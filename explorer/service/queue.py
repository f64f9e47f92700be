"""Steps shared by many requests: what one of them waits for its first token, and between the later ones.

A closed loop of clients, each with one request in flight, on an instance that computes one step at a time. Whatever
the order, a round in which each of n running requests is served once takes n prompts and one answer's steps:

    round(n) = n x prompt + output x step(n)

The order decides how a round is split between the first token and those after it. Little's law does the rest: clients
beyond those that fit wait their part of the rounds before them.
"""

from typing import Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from explorer.fidelity.runs import mean_share
from explorer.service.engine import Engine, Policy
from explorer.service.steps import Steps
from layouts.cut import Scalar

# A server busier than this is full: the formula for chance would grow without bound.
_BUSIEST: Final = 0.9
_ITERATIONS: Final = 40  # of a damped fixed point: halves what is left each time


class Clients(eqx.Module):
    """Who asks: requests in flight, mean tokens of a prompt and of an answer, tokens accepted a step (1: no drafts).

    `spread`: how far lengths lie apart, (longest - shortest) / mean of a uniform draw. `rounds`: requests that each
    client sends, one after the other; all send their first at once. Public benchmarks send ten times their concurrency
    (InferenceMAX, README).
    """

    requests: Float[ArrayLike, ""]
    input_tokens: Float[ArrayLike, ""]
    output_tokens: Float[ArrayLike, ""]
    accept: Float[ArrayLike, ""] = 1.0
    spread: Float[ArrayLike, ""] = 0.0
    rounds: int = eqx.field(static=True, default=10)

    @classmethod
    def drawing(
        cls, requests: ArrayLike, input_tokens: float, output_tokens: float, shortest: float, accept: float = 1.0
    ) -> "Clients":
        """Clients whose lengths are drawn evenly between a share of the stated ones, `shortest`, and the whole."""
        mean = mean_share(shortest)
        return cls(
            requests=np.asarray(requests, np.float64),
            input_tokens=np.float64(mean * input_tokens),
            output_tokens=np.float64(mean * output_tokens),
            accept=np.float64(accept),
            spread=np.float64((1.0 - shortest) / mean),
        )


class Latency(NamedTuple):
    """Mean seconds until the first token, and for each one after it; `running`: requests in decode at once.

    `step`: seconds of their decode step. `prefill_share`: part of the time in which the GPUs that compute prompts do.
    """

    ttft: Scalar
    tpot: Scalar
    running: Scalar
    step: Scalar
    prefill_share: Scalar


def decode_step(engine: Engine, steps: Steps, running: ArrayLike) -> Scalar:
    """Seconds of a decode step: what is left of the fixed times in a graph, and the engine's own work."""
    at = steps.at(running)
    on_gpu = at.gpu - (1.0 - engine.fixed_share) * at.fixed
    return on_gpu + engine.step + engine.request * jnp.asarray(running)


def prefill_step(engine: Engine, steps: Steps, tokens: ArrayLike) -> Scalar:
    """Seconds of a prefill step outside of a graph: its kernels, or their launches where those take longer.

    Some layers wait for the host and others do not: the two add up as squares, and neither is ever without a slope.
    """
    at = steps.at(tokens)
    return jnp.hypot(engine.prefill_stretch * at.gpu, engine.launch * at.launches)


def aggregated(
    engine: Engine,
    clients: Clients,
    decode: Steps,
    prefill: Steps,
    groups: ArrayLike = 1.0,
    stages: ArrayLike = 1.0,
) -> Latency:
    """One instance that computes prompts and answers. `groups`: attention groups that share a prefill step; `stages`:
    of the pipeline, each with a chunk of its own."""
    running = jnp.maximum(jnp.minimum(clients.requests, decode.capacity), 1.0)
    step = decode_step(engine, decode, running)
    answer = step * clients.output_tokens / clients.accept
    together = jnp.inf if engine.policy is Policy.MIXED else running
    each = _filled(engine, clients, prefill, groups, together) / stages
    round_ = running * each + answer
    # where prompts ride along with decode steps, answers end as far apart as their prompts were computed
    apart = running * each if engine.policy is Policy.MIXED else 0.0
    alone = _alone(engine, clients, prefill, groups, stages)
    first = alone + _queue(clients, running, each, round_, apart)
    between = jnp.maximum(round_ - first, answer) / clients.output_tokens
    first = engine.arrival + first + step / 2.0
    served = first + clients.output_tokens * between
    share = running * each / round_
    return Latency(first + _waiting(clients, running) * served, between, running, step, share)


def disaggregated(
    engine: Engine,
    clients: Clients,
    decode: Steps,
    prefill: Steps,
    workers: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
    groups: ArrayLike = 1.0,
    stages: ArrayLike = 1.0,
) -> Latency:
    """Prompts on `workers[0]` instances, answers on `workers[1]` others; a request is always on one of the two.

    The requests in decode follow from where they spend their time: n x answer / (first token + answer).
    """
    prefillers, decoders = (jnp.asarray(w, dtype=float) for w in workers)
    requests = jnp.asarray(clients.requests, dtype=float)
    alone = _alone(engine, clients, prefill, groups, stages)
    each = _filled(engine, clients, prefill, groups, jnp.inf) / stages / prefillers

    def answer(running: Scalar) -> Scalar:
        step = decode_step(engine, decode, jnp.maximum(running / decoders, 1.0))
        return step * clients.output_tokens / clients.accept

    def cycle(held: Scalar) -> Scalar:
        # pools that cannot keep up hold requests back: that of the prompts, or the KV of those that decode
        turns = requests / (decode.capacity * decoders)
        return jnp.maximum(jnp.maximum(alone + answer(held), requests * each), turns * answer(held))

    def settle(running: Scalar, _: None) -> tuple[Scalar, None]:
        held = jnp.minimum(running, decode.capacity * decoders)
        return 0.5 * (running + requests * answer(held) / cycle(held)), None

    running, _ = jax.lax.scan(settle, requests, None, length=_ITERATIONS)
    running = jnp.minimum(running, decode.capacity * decoders)
    answering = answer(running)
    behind = cycle(running) - alone - answering
    queued = _queue(clients, requests, each, alone + answering, requests * each)
    share = jnp.minimum(requests * each / (alone + answering + behind), 1.0)
    step = decode_step(engine, decode, jnp.maximum(running / decoders, 1.0))
    first = engine.arrival + alone + jnp.maximum(behind, queued)
    return Latency(first, answering / clients.output_tokens, running, step, share)


def latency(
    engine: Engine,
    clients: Clients,
    decode: Steps,
    prefill: Steps,
    groups: ArrayLike,
    stages: ArrayLike,
    workers: tuple[ArrayLike, ArrayLike] | None,
) -> Latency:
    """Either: workers of prefill and of decode where they are apart, None where one instance does both."""
    if workers is None:
        return aggregated(engine, clients, decode, prefill, groups, stages)
    return disaggregated(engine, clients, decode, prefill, workers, groups, stages)


def _queue(clients: Clients, running: Scalar, each: Scalar, round_: Scalar, apart: ArrayLike) -> Scalar:
    """Mean seconds that a prompt waits for the prompts before it, over all rounds.

    The first prompts come at once. Later ones come as answers end: within a window that widens with the root of the
    rounds, as lengths add up at random, and is at least `apart`. Prompts that take longer than their window queue up;
    others only meet by chance, as at a server with constant service times that is busy for their part of a round.
    Where prompts take more than half of a round this is too long: they hold back the answers whose ends send others.
    """
    later = jnp.arange(1, clients.rounds)
    drawn = jnp.minimum(jnp.sqrt(later) * clients.spread, 1.0) * round_
    window = jnp.maximum(drawn, apart)
    others = jnp.maximum(running - 1.0, 0.0) * each  # nobody waits for a prompt of its own
    busy = jnp.minimum(others / round_, _BUSIEST)
    by_chance = jnp.minimum(busy / (2.0 * (1.0 - busy)) * each, others / 2.0)
    in_line = jnp.maximum(others - window, 0.0) / 2.0
    waits = jnp.maximum(by_chance, in_line)
    return (others / 2.0 + waits.sum()) / clients.rounds


def _alone(engine: Engine, clients: Clients, prefill: Steps, groups: ArrayLike, stages: ArrayLike) -> Scalar:
    """Seconds of a prompt that nothing competes with: it fills chunks of its own group, the other groups idle. Its
    chunks follow each other through the stages."""
    tokens = jnp.asarray(clients.input_tokens, dtype=float)
    chunk = jnp.minimum(tokens, full_chunk(engine, groups) / groups)
    return prefill_step(engine, prefill, chunk * groups) * (1.0 + (tokens / chunk - 1.0) / stages)


def _filled(engine: Engine, clients: Clients, prefill: Steps, groups: ArrayLike, waiting: ArrayLike) -> Scalar:
    """Seconds of a prompt whose chunks are filled up by those of others that wait."""
    tokens = jnp.asarray(clients.input_tokens, dtype=float)
    chunk = jnp.minimum(tokens * waiting, full_chunk(engine, groups))
    return prefill_step(engine, prefill, chunk) * tokens / chunk


def full_chunk(engine: Engine, groups: ArrayLike) -> Scalar:
    """Tokens of a full prefill step of the instance."""
    return engine.chunk * (jnp.asarray(groups, dtype=float) if engine.chunk_by_group else jnp.ones(()))


def _waiting(clients: Clients, running: Scalar) -> Scalar:
    """Rounds that a request waits before one of those that run makes room for it."""
    return jnp.maximum(clients.requests / running - 1.0, 0.0)
