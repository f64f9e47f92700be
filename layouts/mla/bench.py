"""Latent attention as decode runs it: products a head into and out of the latents, and attention over their pages."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.measuring import Bench, normal, weight
from layouts.benching import BF16, Case, asked, named, values_of
from layouts.mla.attend import RUN, TRIED, Pages, attend_pages
from layouts.mla.reference import by_head
from layouts.mla.shape import MLA
from layouts.mla.work import decode

# heads, rows
_PRODUCTS: Final = ((128, (1, 16, 64, 256)), (16, (16, 64, 256)))
_SMALL_PRODUCTS: Final = ((2, (1, 16)), (4, (1, 16)))
# requests, verify, heads, tokens of a request
_ATTENTIONS: Final = (
    (16, 1, 128, 32768), (16, 1, 16, 32768), (1, 1, 128, 131072), (64, 1, 128, 4096), (256, 1, 16, 4096),
    (16, 5, 96, 16384), (4, 1, 32, 65536), (64, 5, 48, 4096), (32, 1, 64, 8192), (8, 1, 16, 4096),
    (32, 5, 128, 16384), (64, 5, 64, 4096),
)  # fmt: skip
_SMALL_ATTENTIONS: Final = (
    (1, 1, 2, 64), (2, 1, 2, 64), (2, 1, 4, 128), (2, 2, 2, 256), (1, 1, 4, 256), (4, 1, 2, 128)
)  # fmt: skip
_SCALE: Final = 0.06  # of scores whose softmax is neither flat nor a single token's


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """Products a head, then attention."""
    products, attentions = (_SMALL_PRODUCTS, _SMALL_ATTENTIONS) if small else (_PRODUCTS, _ATTENTIONS)
    return [
        *(
            _product(name, heads, m, multiprocessors)
            for name in ("w_kc", "w_vc")
            for heads, rows in products
            for m in rows
        ),
        *(_attention(*shape, multiprocessors) for shape in attentions),
    ]


def shape_of(heads: int) -> MLA:
    """Attention of so many heads, of the widths that published models share."""
    return MLA(7168, heads, 1536, 512, 128, 64, 128, False, None)


def _product(name: str, heads: int, rows: int, multiprocessors: int) -> Bench:
    mla = shape_of(heads)
    (tensor,) = (t for t in mla.tensors() if t.name == name)
    columns, inner = tensor.out // heads, tensor.inp
    values = values_of(Case(rows, heads=heads), multiprocessors)
    return Bench(
        name=f"{name} of {heads} heads, {rows} rows",
        asks=asked(named(decode(mla, mla.tensors(), BF16), name), values),
        turn=by_head,
        held=partial(normal, shape=(rows, heads, inner)),
        own=partial(weight, shape=(heads, columns, inner)),
    )


def _attention(requests: int, verify: int, heads: int, tokens: int, multiprocessors: int) -> Bench:
    mla = shape_of(heads)
    case = Case(requests, tokens, verify, heads)
    runs = -(-tokens // RUN)

    def held(key: jax.Array) -> tuple[jax.Array, Pages]:
        starts = np.random.default_rng(runs).permutation(requests * runs).reshape(requests, runs) * RUN
        limits = np.broadcast_to(tokens - verify + 1 + np.arange(verify), (requests, verify))
        pages = Pages(jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))
        return normal(key, (requests, verify, heads, mla.kv_values)), pages

    def turn(held: tuple[jax.Array, Pages], pool: jax.Array, form: str) -> tuple[jax.Array, jax.Array]:
        query, pages = held
        return attend_pages(query, pool, pages, scale=_SCALE, latent=mla.kv_lora, form=form)

    return Bench(
        name=f"latent attention of {requests} x {verify} rows, {heads} heads, {tokens} tokens",
        asks=asked(named(decode(mla, (), BF16), "mla_decode", "attention_merge"), values_of(case, multiprocessors)),
        turn={form: partial(turn, form=form) for form in TRIED},
        held=held,
        own=lambda key: normal(key, (requests * runs * RUN, mla.kv_values)),
    )
