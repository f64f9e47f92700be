"""How the kernel is cut for given shapes: rows and tokens of a block, and pieces that fill the multiprocessors."""

from typing import Any, Final

import jax.numpy as jnp

from layouts.mla.hopper.splits import split_count
from layouts.paged.block import Entry, Tiling

_FEWEST: Final = 16  # rows and tokens that a product of the tensor cores takes
_MOST_ROWS: Final = 64
_WIDE: Final = 256  # values of a key from which on sums and tiles fill the registers of more warps
_SHARED: Final = 227 * 1024  # bytes of shared memory of a multiprocessor
_MOST_BLOCKS: Final = 4  # that run on one at a time: more gain nothing


def tiling_of(query: tuple[int, ...], pool: Any, entry: Entry, tokens: int, multiprocessors: int) -> Tiling:
    """The cut for queries (requests, verify, heads, key) over `tokens` tokens a request at most."""
    requests, verify, heads, _ = query
    kv_heads, item = pool.shape[1], jnp.dtype(pool.dtype).itemsize
    group = verify * heads // kv_heads
    rows = min(max(_FEWEST, 1 << (group - 1).bit_length()), _MOST_ROWS)
    wide = entry.key > _WIDE
    step, warps, stages = (32, 8 if rows > _FEWEST else 4, 3) if wide else (64, 4, 3)
    values = entry.key if entry.start + entry.width <= entry.key else entry.key + entry.width
    shared = rows * entry.key * 2 + (stages - 1) * step * values * item
    blocks = requests * kv_heads * -(-group // rows)
    at_once = multiprocessors * min(max(_SHARED // shared, 1), _MOST_BLOCKS)
    return Tiling(rows, step, split_count(blocks, -(-tokens // step), at_once), warps, stages)
