"""The routed experts of a rank: which of them rows go to, and rows ordered by expert, through both grouped GEMMs."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.measuring import Bench, normal, weight
from layouts.benching import BF16, Case, asked, named, values_of
from layouts.dense.activation import SwiGLU
from layouts.moe.grouped import TRIED, grouped
from layouts.moe.reference import Experts
from layouts.moe.router import Router
from layouts.moe.shape import MoE
from layouts.moe.work import work

# experts, choices of a row, their width and intermediate width, rows
_SHAPES: Final = (
    (32, 8, 7168, 2048, (1, 8, 32, 128, 512)),
    (64, 8, 4096, 1536, (4, 16, 64, 256)),
)
_SMALL: Final = ((4, 2, 64, 32, (1, 4, 8, 16)),)
# experts, choices of a row, rows
_CHOICES: Final = ((256, 8, 1), (128, 8, 16), (384, 8, 128))
_SMALL_CHOICES: Final = ((8, 2, 1), (8, 2, 4))
# ops of the work that the experts' turn does
_TIMED: Final = ("w13", "w2", "expert_activation", "expert_rows", "expert_order")


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """Experts, then choices."""
    shapes, choices = (_SMALL, _SMALL_CHOICES) if small else (_SHAPES, _CHOICES)
    return [
        *(_experts(n, k, w, i, m, multiprocessors) for n, k, w, i, rows in shapes for m in rows),
        *(_choice(*shape, multiprocessors) for shape in choices),
    ]


def _experts(count: int, topk: int, width: int, intermediate: int, rows: int, multiprocessors: int) -> Bench:
    moe = MoE(width, count, topk, intermediate, 0, 0, False)
    ops = [op for op in work(moe, moe.tensors(), BF16) if op.name in _TIMED]

    def held(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        chosen = np.random.default_rng(rows).random((rows, count)).argsort(axis=1)[:, :topk]
        return normal(key, (rows, width)), jnp.asarray(chosen, jnp.int32)

    def own(key: jax.Array) -> Experts:
        first, second = jax.random.split(key)
        return Experts(weight(first, (count, 2, intermediate, width)), weight(second, (count, width, intermediate)))

    def turn(held: tuple[jax.Array, jax.Array], experts: Experts, form: str) -> jax.Array:
        return grouped(*held, experts, SwiGLU(), jnp.bool_(True), form=form)

    return Bench(
        name=f"{rows} rows to {topk} of {count} experts of {width} x {intermediate}",
        asks=asked(ops, values_of(_case(moe, rows), multiprocessors)),
        turn={form: partial(turn, form=form) for form in TRIED},
        held=held,
        own=own,
    )


def _choice(count: int, topk: int, rows: int, multiprocessors: int) -> Bench:
    moe, router = MoE(1024, count, topk, 512, 0, 0, False), Router(topk, "softmax")
    chosen = named(work(moe, moe.tensors(), BF16), "expert_choice")
    return Bench(
        name=f"choice of {topk} of {count} experts for {rows} rows",
        asks=asked(chosen, values_of(_case(moe, rows), multiprocessors)),
        turn=lambda held, own: router(held),
        held=partial(normal, shape=(rows, count)),
    )


def _case(moe: MoE, rows: int) -> Case:
    return Case(rows, experts=moe.experts, topk=moe.topk)
