"""The recurrence of linear attention as decode runs it: each state read once and written once, in place."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

from hw.measuring import Bench, normal
from layouts.benching import BF16, Case, asked, named, values_of
from layouts.kda.chunked import Writes
from layouts.kda.reference import Tokens
from layouts.kda.shape import KDA
from layouts.kda.slots import Standing
from layouts.kda.verify import FORMS, TRIED
from layouts.kda.work import decode

# heads, width of a head, requests, verify
_SHAPES: Final = (
    (96, 128, 4, 1),
    (96, 128, 16, 1),
    (96, 128, 64, 1),
    (48, 128, 256, 1),
    (32, 128, 64, 5),
    (96, 128, 32, 8),
)
_SMALL: Final = ((2, 16, 1, 1), (2, 16, 4, 1), (4, 16, 4, 1), (2, 16, 4, 3), (4, 16, 8, 1))
Held = tuple[Tokens, jax.Array, Writes]


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """One for each shape."""
    return [_steps(*shape, multiprocessors) for shape in (_SMALL if small else _SHAPES)]


def _steps(heads: int, dim: int, requests: int, verify: int, multiprocessors: int) -> Bench:
    kda = KDA(heads * dim, heads, dim, 4, True)
    each = jnp.full(requests, verify, jnp.int32)
    standing = Standing(jnp.arange(1, 1 + requests, dtype=jnp.int32), each, jnp.zeros(requests, bool))
    rows, kept = (requests, verify, heads, dim), (1 + requests, verify, heads, dim)

    def held(key: jax.Array) -> Held:
        q, k, v, decay, beta, keys, deltas, states = jax.random.split(key, 8)
        unit = dim**-0.5
        tokens = Tokens(
            q=normal(q, rows, jnp.float32, unit), k=normal(k, rows, jnp.float32, unit),
            v=normal(v, rows, jnp.float32), log_decay=-jnp.abs(normal(decay, rows, jnp.float32)),
            beta=jax.nn.sigmoid(normal(beta, rows[:-1], jnp.float32)),
        )  # fmt: skip
        recurrent = normal(states, (1 + requests, heads, dim, dim), jnp.float32)
        written = normal(keys, kept, jnp.float32, unit), normal(deltas, kept, jnp.float32)
        return tokens, recurrent, Writes(*written, jnp.exp(-jnp.abs(written[1])))

    def turn(held: Held, own: tuple[()], form: str) -> Held:
        tokens, recurrent, writes = held
        return (tokens, *FORMS[form](tokens, recurrent, writes, standing)[1:])

    return Bench(
        name=f"states of {requests} x {verify} rows, {heads} heads of {dim}",
        asks=asked(
            named(decode(kda, (), BF16), "kda_state"), values_of(Case(requests, verify=verify), multiprocessors)
        ),
        turn={form: partial(turn, form=form) for form in TRIED},
        held=held,
        carried=True,
    )
