"""Scores and weights of a block: two warpgroups take turns, one tile each, and load the tiles that they score."""

import functools
import math
from typing import Any, Final

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax

from layouts.mla.hopper.block import (
    COLUMNS,
    HIGHEST,
    MATRIX,
    RESCALE,
    ROW,
    ROWS,
    SLOTS,
    TILE,
    TOTAL,
    WARP_ROWS,
    Block,
    Sizes,
    Work,
    each_piece,
    opaque,
    plgpu,
    spread,
)
from layouts.mla.hopper.widen import widen

_REGISTERS: Final = 96
# The reference of the exponents is raised only when a score passes it by a factor 2^8, so that almost no tile rescales
# what is accumulated; weights stay below 2^8, which bf16 holds as well as those below 1.
_SLACK: Final = 8.0
_NOTHING: Final = float("-inf")

Carry = tuple[jax.Array, jax.Array]


def softmax(sizes: Sizes, block: Block, me: jax.Array) -> None:
    """The body of softmax warpgroup `me`, 0 or 1."""
    plgpu.set_max_registers(_REGISTERS, action="decrease")
    each_piece(sizes, block, lambda work: _piece(sizes, block, work, me))


def _piece(sizes: Sizes, block: Block, work: Work, me: jax.Array) -> None:
    """Scores every other tile from tile `me` on."""
    pl.when(me == 0)(lambda: _load_query(sizes, block, work))
    pl.when(me < work.tiles)(lambda: _load(sizes, block, work, me, me))
    limit = _limits(sizes, block, work)
    plgpu.barrier_wait(block.query_loaded)
    nothing = plgpu.layout_cast(jnp.full((ROWS,), _NOTHING, jnp.float32), ROW)
    zero = plgpu.layout_cast(jnp.full((ROWS,), 0, jnp.float32), ROW)
    step = functools.partial(_step, sizes, block, work, me, limit)
    whole = jnp.clip(work.low // TILE - work.first, 0, work.tiles)
    unmasked, mine = jnp.maximum(whole - me + 1, 0) // 2, (work.tiles - me + 1) // 2
    carry = lax.fori_loop(0, unmasked, functools.partial(step, masked=False), (nothing, zero))
    highest, total = lax.fori_loop(unmasked, mine, functools.partial(step, masked=True), carry)
    _finish(sizes, block, work, me, highest, total)


def _limits(sizes: Sizes, block: Block, work: Work) -> jax.Array:
    """How many tokens each row sees; rows behind the last of the request see what that does."""
    limit = plgpu.layout_cast(jnp.full((ROWS,), block.limits[work.request, 0], jnp.int32), ROW)
    for token in range(1, sizes.verify):
        row = plgpu.broadcasted_iota(jnp.int32, (ROWS,), 0, layout=ROW) + work.row
        limit = jnp.where(row >= token * sizes.heads, block.limits[work.request, token], limit)
    return limit


def _load_query(sizes: Sizes, block: Block, work: Work) -> None:
    start = pl.multiple_of(work.request * sizes.rows + work.row, WARP_ROWS)
    rows = block.query.at[pl.ds(start, ROWS)]
    plgpu.copy_gmem_to_smem(rows, block.queries.at[0], block.query_loaded)


def _load(sizes: Sizes, block: Block, work: Work, me: jax.Array, tile: jax.Array) -> None:
    barriers = me * (sizes.groups + 1)
    latents, ropes, first, slot = block.latents, block.ropes, me * sizes.groups, me
    if sizes.packed:  # into the front half of the memory of the slot
        latents, ropes, first, slot = block.packed_latents, block.packed_ropes, 2 * me * sizes.groups, 2 * me
    for run in range(sizes.runs):
        start = pl.multiple_of(block.starts[work.request, (work.first + tile) * sizes.runs + run], 8)
        rows, into = pl.ds(start, sizes.run), pl.ds(run * sizes.run, sizes.run)
        rope = block.pool.at[rows, pl.ds(sizes.latent, sizes.rope)]
        plgpu.copy_gmem_to_smem(rope, ropes.at[slot, into], block.loaded.at[barriers + sizes.rope_barrier])
        for group in range(sizes.groups):
            columns = block.pool.at[rows, pl.ds(group * COLUMNS, COLUMNS)]
            plgpu.copy_gmem_to_smem(columns, latents.at[first + group, into], block.loaded.at[barriers + group])


def _scores(sizes: Sizes, block: Block, me: jax.Array) -> jax.Array:
    """Products of the query rows with the tile of this warpgroup's slot, each part as soon as it is loaded."""
    query, slot = block.queries.at[opaque(jnp.int32(0))], opaque(jnp.int32(me))
    barriers = me * (sizes.groups + 1)
    if sizes.packed:
        for part in range(sizes.groups + 1):
            plgpu.barrier_wait(block.loaded.at[barriers + part])
        widen(sizes, block, me)
        plgpu.commit_smem()

    def wait(part: int) -> None:
        if not sizes.packed:
            plgpu.barrier_wait(block.loaded.at[barriers + part])

    def product(sums: Any) -> jax.Array:
        wait(sizes.rope_barrier)
        rope = query.at[:, pl.ds(sizes.latent, sizes.rope)]
        plgpu.wgmma(sums, rope, block.ropes.at[slot].transpose((1, 0)))
        for group in range(sizes.groups):
            wait(group)
            part, latent = query.at[:, pl.ds(group * COLUMNS, COLUMNS)], block.latents.at[slot * sizes.groups + group]
            plgpu.wgmma(sums, part, latent.transpose((1, 0)))
        return sums[...]

    return pl.run_scoped(product, plgpu.ACC((ROWS, TILE), jnp.float32))


def _step(
    sizes: Sizes, block: Block, work: Work, me: jax.Array, limit: jax.Array, turn: jax.Array, carry: Carry, masked: bool
) -> Carry:
    """One tile; exponents are of base 2. Carries the reference of the exponents and the sum of this one's weights."""
    own, total = carry
    tile, other, unit = SLOTS * turn + me, 1 - me, sizes.scale * math.log2(math.e)
    scores = _scores(sizes, block, me)
    if masked:
        token = plgpu.broadcasted_iota(jnp.int32, (ROWS, TILE), 1, layout=MATRIX) + (work.first + tile) * TILE
        scores = jnp.where(token < spread(limit, scores), scores, _NOTHING)
    top = scores.max(axis=1) * unit
    pl.when(tile > 0)(lambda: plgpu.barrier_wait(block.highest_known.at[other]))
    turns = plgpu.layout_cast(jnp.full((ROWS,), tile, jnp.int32), ROW)
    before = jnp.where(turns > 0, block.row(HIGHEST + other), _NOTHING)
    highest = jnp.where(top > before + _SLACK, top, before)
    block.by_row.at[HIGHEST + me][...] = highest
    plgpu.barrier_arrive(block.highest_known.at[me])
    shift = jnp.where(highest == _NOTHING, 0.0, highest) if masked else highest
    weights = jnp.exp2(scores * unit - spread(shift, scores))
    rescale = jnp.where(highest == before, 1.0, jnp.exp2(before - shift))
    pl.when(tile > 0)(lambda: plgpu.barrier_wait(block.tile_done.at[other]))  # its weights have been used
    block.weights[...] = weights.astype(block.weights.dtype)
    block.by_row.at[RESCALE][...] = rescale
    plgpu.commit_smem()
    plgpu.barrier_arrive(block.weights_ready)
    total = total * jnp.where(highest == own, 1.0, jnp.exp2(own - shift)) + weights.sum(axis=1)
    plgpu.barrier_wait(block.tile_done.at[me])
    pl.when(tile + SLOTS < work.tiles)(lambda: _load(sizes, block, work, me, tile + SLOTS))
    return highest, total


def _finish(sizes: Sizes, block: Block, work: Work, me: jax.Array, own: jax.Array, total: jax.Array) -> None:
    """The sums of both warpgroups made one: the factor of the output, and the log-sum-exp."""
    ended, other = lax.rem(work.tiles + 1, jnp.int32(2)), 1 - me  # who had the last tile

    @pl.when(ended != me)
    def _() -> None:
        plgpu.barrier_wait(block.highest_known.at[other])
        plgpu.barrier_wait(block.tile_done.at[other])

    last = block.row(HIGHEST + ended)
    total = total * jnp.where(last == own, 1.0, jnp.exp2(own - jnp.where(last == _NOTHING, 0.0, last)))

    @pl.when(me == 1)
    def _() -> None:
        block.by_row.at[TOTAL][...] = total
        plgpu.barrier_arrive(block.total_ready)

    @pl.when(me == 0)
    def _() -> None:
        plgpu.barrier_wait(block.total_ready)
        both = total + block.row(TOTAL)
        block.by_row.at[RESCALE][...] = jnp.where(both > 0, 1.0 / both, 0.0)
        plgpu.barrier_arrive(block.finished)
        lse = jnp.where(both > 0, last * math.log(2) + jnp.log(both), _NOTHING)

        def whole(rows: Any) -> None:
            block.whole_lse[rows] = lse

        def part(rows: Any) -> None:
            block.part_lse[rows] = lse

        work.leave(sizes, whole, part)
        plgpu.barrier_wait(block.factor_read)  # the next piece writes in its place
