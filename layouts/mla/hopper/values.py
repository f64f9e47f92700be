"""The output of a block: two warpgroups, each with half of the latent's columns, sum the weighted tiles."""

from typing import Any, Final

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax

from layouts.mla.hopper.block import (
    COLUMNS,
    MATRIX,
    RESCALE,
    ROWS,
    SLOTS,
    TILE,
    Block,
    Sizes,
    Work,
    each_piece,
    plgpu,
    rescales,
    spread,
)

_REGISTERS: Final = 160
_SWIZZLED: Final = 64  # bf16 columns of one swizzle

Sums = tuple[jax.Array, ...]


def values(sizes: Sizes, block: Block, half: jax.Array) -> None:
    """The body of values warpgroup `half`, 0 or 1."""
    plgpu.set_max_registers(_REGISTERS, action="increase")
    each_piece(sizes, block, lambda work: _piece(sizes, block, work, half))


def _piece(sizes: Sizes, block: Block, work: Work, half: jax.Array) -> None:
    groups = sizes.groups // 2
    zero = jnp.full((ROWS, COLUMNS), 0, jnp.float32)
    sums = tuple(plgpu.layout_cast(zero, MATRIX) for _ in range(groups))

    def step(tile: jax.Array, sums: Sums) -> Sums:
        latents = [
            block.latents.at[lax.rem(tile, jnp.int32(SLOTS)) * sizes.groups + half * groups + n] for n in range(groups)
        ]
        plgpu.barrier_wait(block.weights_ready)
        factor = block.row(RESCALE)
        seen = work.high - (work.first + tile) * TILE
        pl.when(seen < TILE)(lambda: _clear(latents, seen))
        sums = lax.cond(rescales(factor) != 0, lambda *s: _scaled(s, factor), lambda *s: s, *sums)

        def product(refs: Any) -> None:
            for ref, latent in zip(refs, latents, strict=True):
                plgpu.wgmma(ref, block.weights, latent)

        added = pl.run_state(product)(tuple(map(plgpu.ACC.init, sums)))
        plgpu.barrier_arrive(block.tile_done.at[lax.rem(tile, jnp.int32(SLOTS))])
        return tuple(added)

    sums = lax.fori_loop(0, work.tiles, step, sums)
    plgpu.barrier_wait(block.finished)
    sums = _scaled(sums, block.row(RESCALE))
    plgpu.barrier_arrive(block.factor_read)
    columns = [pl.ds((half * groups + n) * COLUMNS, COLUMNS) for n in range(groups)]

    def whole(rows: Any) -> None:
        for own, part in zip(columns, sums, strict=True):
            block.whole[rows, own] = part.astype(block.whole.dtype)

    def part(rows: Any) -> None:
        for own, part in zip(columns, sums, strict=True):
            block.part[rows, own] = part

    work.leave(sizes, whole, part)


def _scaled(sums: Sums, factor: jax.Array) -> Sums:
    return tuple(part * spread(factor, part) for part in sums)


def _clear(latents: list[Any], seen: jax.Array) -> None:
    """Zero what no row sees of the last tile: its weights are 0, and 0 x NaN is not."""
    token = plgpu.broadcasted_iota(jnp.int32, (TILE, _SWIZZLED), 0, layout=MATRIX)
    for latent in latents:
        for column in range(0, COLUMNS, _SWIZZLED):
            part = latent.at[:, pl.ds(column, _SWIZZLED)]
            kept = plgpu.load(part, layout=MATRIX, optimized=False)
            part[...] = jnp.where(token < seen, kept, jnp.zeros_like(kept))
    plgpu.commit_smem()
