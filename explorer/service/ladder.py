"""What clients see at many concurrencies at once, each with the ends of the machine's 80 % range: one program."""

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from explorer.service.engine import Engine
from explorer.service.predict import Served
from explorer.service.queue import Clients, Latency, latency
from explorer.service.steps import Steps
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.programs import kept

RUNGS: Final = 28  # of every ladder, so that all share a program: more than there are powers of two that can be asked
_ENDS: Final = ("gpu", "fast", "slow")


def concurrencies(most: int) -> tuple[int, ...]:
    """Powers of two below a number of clients, and that number."""
    return (*(2**i for i in range((most - 1).bit_length())), most)


@in_x64
def ladder(found: Served) -> Latency:
    """Latencies at every number of requests of `found.clients` (at most `RUNGS`): a row at the machine's likely speed,
    one at its fast and one at its slow end."""
    requests = np.asarray(found.clients.requests, np.float64)
    rungs = np.pad(requests, (0, RUNGS - len(requests)), mode="edge")
    likely = (found.decode.steps, found.prefill.steps)
    ends = [[steps.with_seconds(end) for end in _ENDS] for steps in likely]
    decode, prefill = (jax.tree.map(lambda *leaves: np.stack(leaves), *steps) for steps in ends)
    workers = None if found.workers is None else (np.float64(found.workers[0]), np.float64(found.workers[1]))
    inside = (np.float64(found.prefill.groups), np.float64(found.prefill.stages))
    rows = _ladder(found.engine.anonymous(), found.clients, rungs, decode, prefill, *inside, workers)
    return jax.tree.map(lambda row: np.asarray(row)[:, : len(requests)], rows)


@kept(COMPILE_TO_RUN_ONCE)
def _ladder(
    engine: Engine,
    clients: Clients,
    rungs: Float[np.ndarray, " rungs"],
    decode: Steps,
    prefill: Steps,
    groups: ArrayLike,
    stages: ArrayLike,
    workers: tuple[ArrayLike, ArrayLike] | None,
) -> Latency:
    def one(requests: ArrayLike, decode: Steps, prefill: Steps) -> Latency:
        asked = Clients(requests, clients.input_tokens, clients.output_tokens, clients.accept, clients.spread)
        return latency(engine, asked, decode, prefill, groups, stages, workers)

    at_end = lambda d, p: jax.vmap(lambda requests: one(requests, d, p))(jnp.asarray(rungs))  # noqa: E731
    return jax.vmap(at_end)(decode, prefill)
