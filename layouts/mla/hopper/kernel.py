"""The launch: blocks of 64 query rows that pass over pieces of requests, four warpgroups each.

Two warpgroups take turns to score a tile of 64 latents, two sum up half of the columns each, so that the exponents of
one tile are computed under the products of the next. 64 x 512 sums in float32 fill the registers of two warpgroups, the
rows of the query and two tiles the shared memory. The split of the columns over warpgroups is that of FlashMLA
(github.com/deepseek-ai/FlashMLA); who scores, the turns and the lazy reference of the exponents are ours.
"""

from functools import partial
from typing import Any, Final

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from hw.errors import MeshwrightError
from layouts.collectives import vary_alike
from layouts.mla.hopper.block import ATOM, COLUMNS, SLOTS, TILED, Block, Sizes, plgpu
from layouts.mla.hopper.softmax import softmax
from layouts.mla.hopper.values import values
from layouts.mla.shares import ROWS, TILE

LATENT: Final = 512
ROPE: Final = 64
PACKED: Final = jnp.dtype(jnp.float8_e4m3fn)
_SOFTMAX_GROUPS: Final = 2
_WARPGROUPS: Final = 4


class UnsupportedShapeError(MeshwrightError):
    """Latents that the kernel does not take."""


def require_supported(latent: int, rope: int, dtype: Any, run: int) -> None:
    """Raises `UnsupportedShapeError` for what is not bf16 or fp8 latents of 512 values and 64 rotary ones, and for runs
    of tokens that do not make a tile, or an atom of a swizzle."""
    if (latent, rope) != (LATENT, ROPE) or jnp.dtype(dtype) not in (jnp.bfloat16, PACKED):
        raise UnsupportedShapeError(
            f"latents of {latent} + {rope} values in {jnp.dtype(dtype).name}: the kernel takes {LATENT} + {ROPE} in"
            f" bfloat16 or {PACKED.name}; use another form"
        )
    if TILE % run or run % ATOM:
        raise UnsupportedShapeError(
            f"runs of {run} tokens: the kernel takes multiples of {ATOM} that divide {TILE}; make pages of those"
        )


def launch(
    sizes: Sizes,
    query: Float[Array, "requests*rows width"],
    pool: Float[Array, "pool_rows width"],
    starts: Int[Array, "requests runs"],
    limits: Int[Array, "requests verify"],
    begins: Int[Array, " requests+1"],
    dtype: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Output and log-sum-exp (base e) of requests that are not cut, by their rows, and of the pieces of those that are.

    The pieces are float32, `sizes.rows` rows each: [g] is that of gang g that began in an earlier one, [gangs + g] that
    of gang g that goes on. Rows that no piece is of are not written. `query` has at least 64 rows.
    """

    def body(*refs: Any, **shared: Any) -> None:
        tiles = shared.pop("tiles")
        (latents, ropes), (packed_latents, packed_ropes) = tiles if sizes.packed else (tiles, (None, None))
        tiles = {"latents": latents, "ropes": ropes, "packed_latents": packed_latents, "packed_ropes": packed_ropes}
        block, group = Block(*refs, **tiles, **shared), lax.axis_index("warpgroup")
        pl.when(group < _SOFTMAX_GROUPS)(lambda: softmax(sizes, block, group))
        pl.when(group >= _SOFTMAX_GROUPS)(lambda: values(sizes, block, group - _SOFTMAX_GROUPS))

    parts = 2 * sizes.gangs * sizes.rows
    given = vary_alike(query, pool, starts, limits, begins)
    described = partial(jax.ShapeDtypeStruct, manual_axis_type=jax.typeof(given[0]).manual_axis_type)
    run = plgpu.kernel(
        body,
        out_type=(
            described((len(query), LATENT), dtype),
            described((len(query),), jnp.float32),
            described((parts, LATENT), jnp.float32),
            described((parts,), jnp.float32),
        ),
        scratch_types=_shared(sizes, query.dtype),
        grid=(sizes.gangs, sizes.blocks),  # blocks of the same latents are neighbours, and share them in the cache
        grid_names=("gang", "rows"),
        num_threads=_WARPGROUPS,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            unsafe_no_auto_barriers=True,
            reduction_scratch_bytes=512,
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
        ),
    )
    return run(*given)


def _shared(sizes: Sizes, dtype: Any) -> dict[str, Any]:
    """Shared memory and barriers of a block, by the names of `Block`."""
    tiles = (
        plgpu.SMEM((SLOTS * sizes.groups, TILE, COLUMNS), dtype, transforms=TILED),
        plgpu.SMEM((SLOTS, TILE, sizes.rope), dtype, transforms=TILED),
    )
    packed = (
        plgpu.SMEM((SLOTS * 2 * sizes.groups, TILE, COLUMNS), PACKED),  # the second half of each slot is room to widen
        plgpu.SMEM((SLOTS * 2, TILE, sizes.rope), PACKED),
    )
    return {
        "tiles": plgpu.RefUnion(tiles, packed) if sizes.packed else tiles,
        "queries": plgpu.SMEM((1, ROWS, sizes.latent + sizes.rope), dtype, transforms=TILED),
        "weights": plgpu.SMEM((ROWS, TILE), dtype, transforms=TILED),
        "by_row": plgpu.SMEM((4, ROWS), jnp.float32),
        "loaded": plgpu.Barrier(num_arrivals=sizes.runs, num_barriers=SLOTS * (sizes.groups + 1)),
        "query_loaded": plgpu.Barrier(),
        "highest_known": plgpu.Barrier(num_barriers=SLOTS),
        "weights_ready": plgpu.Barrier(),
        "tile_done": plgpu.Barrier(num_arrivals=2, num_barriers=SLOTS),
        "total_ready": plgpu.Barrier(),
        "finished": plgpu.Barrier(),
        "factor_read": plgpu.Barrier(num_arrivals=2),
    }
