"""What one block does: scores, weights and sums of its query rows, a tile of tokens at a time.

Sizes that are no powers of two are taken in parts that are, as the backend has no other arrays: 576 as 512 + 64.
"""

import functools
import math
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton

_NOTHING: Final = float("-inf")
_NEVER: Final = 2**30  # behind every token

Index = tuple[jax.Array, ...]
Carry = tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]


class Entry(NamedTuple):
    """What a pool keeps of a token and KV head: a key of `key` values, and `width` values from `start` on to sum up,
    which may lie within the key."""

    key: int
    start: int
    width: int


class Tiling(NamedTuple):
    """Query rows of a block and tokens of a step of it, powers of two; pieces that the tokens of a request are cut
    into; warps of a block, and steps whose tokens are loaded ahead."""

    rows: int
    tokens: int
    splits: int
    warps: int
    stages: int


class Block(NamedTuple):
    """References of a block: `lows` only where there is a window."""

    query: Any
    pool: Any
    starts: Any
    limits: Any
    lows: Any
    part: Any
    lse: Any


class Rows(NamedTuple):
    """The query rows of a block: which token and head each is, whether it is one, and what it sees."""

    verify: jax.Array
    head: jax.Array
    real: jax.Array
    limit: jax.Array
    low: jax.Array


def attend(block: Block, entry: Entry, scale: float, run: int, tiling: Tiling) -> None:
    """The body of the kernel, of a grid of groups of rows x KV heads x pieces x requests."""
    kv_head, split, request = (pl.program_id(axis) for axis in (1, 2, 3))
    rows = _rows(block, kv_head, request, tiling)
    high, first = rows.limit.max(), rows.low.min()
    begin, end = first // tiling.tokens, pl.cdiv(high, tiling.tokens)
    each = pl.cdiv(jnp.maximum(end - begin, 0), tiling.splits)
    begin = begin + split * each
    end = jnp.minimum(begin + each, end)
    query = [_load(block.query, (request, rows.verify, rows.head), rows.real, *part) for part in powers(0, entry.key)]
    # loaded a step before it is used: what is loaded from there is then known steps ahead
    start = functools.partial(_starts, block, request, run, tiling)

    def step(tile: jax.Array, carry: Carry) -> Carry:
        place, highest, total, sums = carry
        token = tile * tiling.tokens + jnp.arange(tiling.tokens, dtype=jnp.int32)
        places = place + lax.rem(token, jnp.int32(run))
        load = functools.partial(_load, block.pool, (places, kv_head), (token >= first) & (token < high))
        keys = {part: load(*part).astype(query[0].dtype) for part in powers(0, entry.key)}
        scores = sum(
            jnp.dot(q, k.T, preferred_element_type=jnp.float32) for q, k in zip(query, keys.values(), strict=True)
        )
        seen = (token[None, :] < rows.limit[:, None]) & (token[None, :] >= rows.low[:, None])
        scores = jnp.where(seen, scores * (scale * math.log2(math.e)), _NOTHING)
        raised = jnp.maximum(highest, scores.max(axis=1))
        shift = jnp.where(raised == _NOTHING, 0.0, raised)
        weights, factor = jnp.exp2(scores - shift[:, None]), jnp.exp2(highest - shift)
        values = [
            keys[part] if part in keys else load(*part).astype(query[0].dtype)
            for part in powers(entry.start, entry.width)
        ]
        used = weights.astype(query[0].dtype)
        added = tuple(
            before * factor[:, None] + jnp.dot(used, value, preferred_element_type=jnp.float32)
            for before, value in zip(sums, values, strict=True)
        )
        return start(tile + 1), raised, total * factor + weights.sum(axis=1), added

    none = jnp.full((tiling.rows,), _NOTHING, jnp.float32)
    sums = tuple(jnp.zeros((tiling.rows, size), jnp.float32) for _, size in powers(entry.start, entry.width))
    _, highest, total, sums = lax.fori_loop(begin, end, step, (start(begin), none, jnp.zeros_like(none), sums))
    _leave(block, entry, rows, (request, split), highest, total, sums)


def powers(start: int, size: int) -> tuple[tuple[int, int], ...]:
    """A range as parts (start, size) whose sizes are powers of two, the largest first."""
    sizes = [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]
    return tuple((start + sum(sizes[:i]), part) for i, part in enumerate(sizes))


def _rows(block: Block, kv_head: jax.Array, request: jax.Array, tiling: Tiling) -> Rows:
    _, verify, heads, _ = block.query.shape
    group = heads // block.pool.shape[1]
    row = pl.program_id(0) * tiling.rows + jnp.arange(tiling.rows, dtype=jnp.int32)
    token, real = row // group, row < verify * group
    limit = triton.load(block.limits.at[request, token], mask=real, other=0)
    low = jnp.zeros_like(limit)
    if block.lows is not None:
        low = triton.load(block.lows.at[request, token], mask=real, other=0)
    return Rows(token, kv_head * group + row % group, real, limit, jnp.where(limit > low, low, _NEVER))


def _starts(block: Block, request: jax.Array, run: int, tiling: Tiling, tile: jax.Array) -> jax.Array:
    """Pool row where the run of each token of a tile starts; one where the tile lies in a run."""
    last = block.starts.shape[1] - 1
    if run % tiling.tokens == 0:
        return block.starts[request, jnp.minimum(lax.div(tile, jnp.int32(run // tiling.tokens)), last)]
    token = tile * tiling.tokens + jnp.arange(tiling.tokens, dtype=jnp.int32)
    return triton.load(block.starts.at[request, jnp.minimum(lax.div(token, jnp.int32(run)), last)])


def _load(ref: Any, places: Index, real: jax.Array, at: int, size: int) -> jax.Array:
    """`size` values from `at` on of each of several places, zeros where there is none."""
    return triton.load(columns(ref, places, at, size), mask=real[:, None], other=0.0)


def columns(ref: Any, places: Index, at: int, size: int) -> Any:
    """Reference of a matrix: `size` values from `at` on of each of several places.

    With a slice for the columns the backend would take it, its interpreter would not.
    """
    lines = (place[:, None] if place.ndim else place for place in places)
    return ref.at[*lines, at + jnp.arange(size, dtype=jnp.int32)[None, :]]


def _leave(
    block: Block, entry: Entry, rows: Rows, piece: Index, highest: jax.Array, total: jax.Array, sums: Index
) -> None:
    divisor = jnp.where(total > 0, total, 1.0)
    for (at, size), one in zip(powers(0, entry.width), sums, strict=True):
        whole = columns(block.part, (*piece, rows.verify, rows.head), at, size)
        triton.store(whole, (one / divisor[:, None]).astype(block.part.dtype), mask=rows.real[:, None])
    lse = jnp.where(total > 0, highest * math.log(2) + jnp.log(divisor), _NOTHING)
    triton.store(block.lse.at[*piece, rows.verify, rows.head], lse, mask=rows.real)
