"""The residual stream around a layer part: its sum and its norm, of values that were just written, small to large."""

from typing import Final

import jax
import jax.numpy as jnp

from hw.measuring import Bench, normal
from layouts.benching import Case, asked, values_of
from layouts.residual.reference import add_norm
from layouts.residual.work import norm
from layouts.symbols import ROWS

_HIDDEN: Final = 7168
_ROWS: Final = (1, 16, 64, 256, 1024, 8192)
_SMALL: Final = (1, 4, 16, 64)
_EPS: Final = 1e-6


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """One for each row count."""
    return [_bench(rows, multiprocessors) for rows in (_SMALL if small else _ROWS)]


def _bench(rows: int, multiprocessors: int) -> Bench:
    def held(key: jax.Array) -> tuple[jax.Array, ...]:
        of_update, of_stream = jax.random.split(key)
        return (
            normal(of_update, (rows, _HIDDEN)),
            normal(of_stream, (rows, _HIDDEN)),
            jnp.ones((_HIDDEN,), jnp.bfloat16),
        )

    def turn(held: tuple[jax.Array, ...], own: tuple[()]) -> tuple[jax.Array, jax.Array]:
        update, stream, scale = held
        return add_norm(update, stream, scale, _EPS)

    return Bench(
        name=f"sum and norm of {rows} x {_HIDDEN}",
        asks=asked([norm("norm", ROWS, _HIDDEN, 0)], values_of(Case(rows), multiprocessors)),
        turn=turn,
        held=held,
    )
