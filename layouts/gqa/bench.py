"""Grouped-query attention as decode runs it: over pages of keys and values."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.measuring import Bench, normal
from layouts.benching import BF16, Case, asked, named, values_of
from layouts.gqa.shape import GQA
from layouts.gqa.work import decode
from layouts.paged import RUN, Pages
from layouts.paged.attend import TRIED, attend_pages
from layouts.paged.block import Entry

# requests, verify, heads, KV heads, tokens of a request
_ATTENTIONS: Final = (
    (16, 1, 64, 4, 32768), (64, 1, 64, 4, 4096), (256, 1, 32, 2, 4096), (4, 1, 64, 8, 65536), (64, 5, 32, 4, 4096),
    (16, 1, 8, 1, 16384), (8, 1, 32, 4, 4096), (64, 5, 32, 2, 16384), (32, 5, 64, 4, 4096),
)  # fmt: skip
_SMALL: Final = ((1, 1, 2, 1, 64), (2, 1, 4, 2, 64), (2, 1, 4, 1, 128), (2, 2, 2, 1, 256), (4, 1, 2, 1, 128))
_WIDTH: Final = 128


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """One for each shape."""
    return [_attention(*shape, multiprocessors) for shape in (_SMALL if small else _ATTENTIONS)]


def _attention(requests: int, verify: int, heads: int, kv_heads: int, tokens: int, multiprocessors: int) -> Bench:
    gqa = GQA(4096, heads, kv_heads, _WIDTH, 0, False, False)
    case = Case(requests, tokens, verify, kv_heads=kv_heads, group=heads // kv_heads)
    runs, entry = -(-tokens // RUN), Entry(_WIDTH, _WIDTH, _WIDTH)

    def held(key: jax.Array) -> tuple[jax.Array, Pages]:
        starts = np.random.default_rng(runs).permutation(requests * runs).reshape(requests, runs) * RUN
        limits = np.broadcast_to(tokens - verify + 1 + np.arange(verify), (requests, verify))
        pages = Pages(jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))
        return normal(key, (requests, verify, heads, _WIDTH)), pages

    def turn(held: tuple[jax.Array, Pages], pool: jax.Array, form: str) -> tuple[jax.Array, jax.Array]:
        query, pages = held
        return attend_pages(query, pool, pages, entry=entry, scale=_WIDTH**-0.5, run=RUN, form=form)

    return Bench(
        name=f"grouped attention of {requests} x {verify} rows, {heads} over {kv_heads} heads, {tokens} tokens",
        asks=asked(named(decode(gqa, (), BF16), "gqa_decode", "attention_merge"), values_of(case, multiprocessors)),
        turn={form: partial(turn, form=form) for form in TRIED},
        held=held,
        own=lambda key: normal(key, (requests * runs * RUN, kv_heads, 2 * _WIDTH)),
    )
