"""The routed experts of a rank: rows ordered by expert, through both grouped GEMMs."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from hw.measuring import Bench, normal, weight
from layouts.benching import BF16, Case, asked, values_of
from layouts.dense.activation import SwiGLU
from layouts.moe.grouped import TRIED, grouped
from layouts.moe.reference import Experts
from layouts.moe.shape import MoE
from layouts.moe.work import work

# experts, choices of a row, their width and intermediate width, rows
_SHAPES: Final = (
    (32, 8, 7168, 2048, (1, 8, 32, 128, 512)),
    (64, 8, 4096, 1536, (4, 16, 64, 256)),
)
_SMALL: Final = ((4, 2, 64, 32, (1, 2, 4, 8, 16, 32, 64)),)
_DRAWS: Final = 32
# ops of the work that the experts' turn does
_TIMED: Final = ("w13", "w2", "expert_activation", "expert_rows", "expert_order")


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """One for each shape and row count."""
    shapes = _SMALL if small else _SHAPES
    return [_experts(n, k, w, i, m, multiprocessors) for n, k, w, i, rows in shapes for m in rows]


def _experts(count: int, topk: int, width: int, intermediate: int, rows: int, multiprocessors: int) -> Bench:
    moe = MoE(width, count, topk, intermediate, 0, 0, False)
    ops = [op for op in work(moe, moe.tensors(), BF16) if op.name in _TIMED]

    values = values_of(_case(moe, rows), multiprocessors)
    chosen = _typical(rows, count, topk, values["experts_touched"])

    def held(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return normal(key, (rows, width)), jnp.asarray(chosen, jnp.int32)

    def own(key: jax.Array) -> Experts:
        first, second = jax.random.split(key)
        return Experts(weight(first, (count, 2, intermediate, width)), weight(second, (count, width, intermediate)))

    def turn(held: tuple[jax.Array, jax.Array], experts: Experts, form: str) -> jax.Array:
        return grouped(*held, experts, SwiGLU(), jnp.bool_(True), form=form)

    return Bench(
        name=f"{rows} rows to {topk} of {count} experts of {width} x {intermediate}",
        asks=asked(ops, values),
        turn={form: partial(turn, form=form) for form in TRIED},
        held=held,
        own=own,
    )


def _typical(rows: int, count: int, topk: int, touched: float) -> Int[np.ndarray, "rows topk"]:
    """Choices of each row, every expert as likely as another, of several draws the one that touches as many experts as
    is expected."""
    random = np.random.default_rng(rows)
    draws = [random.random((rows, count)).argsort(axis=1)[:, :topk] for _ in range(_DRAWS)]
    return min(draws, key=lambda drawn: abs(len(np.unique(drawn)) - touched))


def _case(moe: MoE, rows: int) -> Case:
    return Case(rows, experts=moe.experts, topk=moe.topk)
