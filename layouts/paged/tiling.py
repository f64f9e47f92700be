"""How the kernel is cut for given shapes: rows and tokens of a block, and pieces that fill the multiprocessors."""

from typing import Any

import jax.numpy as jnp

from layouts.paged.block import Entry, Tiling
from layouts.paged.splits import split_count
from layouts.paged.steps import steps_of


def tiling_of(query: tuple[int, ...], pool: Any, entry: Entry, tokens: int, multiprocessors: int) -> Tiling:
    """The cut for queries (requests, verify, heads, key) over `tokens` tokens a request at most."""
    requests, verify, heads, _ = query
    kv_heads = pool.shape[1]
    group = verify * heads // kv_heads
    values = entry.key if entry.start + entry.width <= entry.key else entry.key + entry.width
    steps = steps_of(entry.key, values, jnp.dtype(pool.dtype).itemsize)
    rows = min(max(min(steps), 1 << (group - 1).bit_length()), max(steps))
    step = steps[rows]
    blocks = requests * kv_heads * -(-group // rows)
    pieces = split_count(blocks, -(-tokens // step.tokens), multiprocessors * step.at_once)
    return Tiling(rows, step.tokens, pieces, step.warps, step.stages)
