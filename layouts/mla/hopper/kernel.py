"""The launch: blocks of 64 query rows over a piece of a request's latents, four warpgroups each.

Two warpgroups take turns to score a tile of 64 latents, two sum up half of the columns each, so that the exponents of
one tile are computed under the products of the next. 64 x 512 sums in float32 fill the registers of two warpgroups, the
rows of the query and two tiles the shared memory. The split of the columns over warpgroups is that of FlashMLA
(github.com/deepseek-ai/FlashMLA); who scores, the turns and the lazy reference of the exponents are ours.
"""

from typing import Any, Final

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from hw.errors import MeshwrightError
from layouts.mla.hopper.block import COLUMNS, ROWS, SLOTS, TILE, Block, Sizes, plgpu, work_of
from layouts.mla.hopper.softmax import softmax
from layouts.mla.hopper.values import values

LATENT: Final = 512
ROPE: Final = 64
_SOFTMAX_GROUPS: Final = 2
_WARPGROUPS: Final = 4


class UnsupportedShapeError(MeshwrightError):
    """Latents that the kernel does not take."""


def require_supported(latent: int, rope: int, dtype: Any) -> None:
    """Raises `UnsupportedShapeError` for what is not bf16 latents of 512 values and 64 rotary ones."""
    if (latent, rope) != (LATENT, ROPE) or jnp.dtype(dtype) != jnp.bfloat16:
        raise UnsupportedShapeError(
            f"latents of {latent} + {rope} values in {jnp.dtype(dtype).name}: the kernel takes {LATENT} + {ROPE} in"
            " bfloat16; use the XLA form"
        )


def attend_parts(
    query: Float[Array, "requests rows width"],
    pool: Float[Array, "pool_rows width"],
    starts: Int[Array, "requests tiles"],
    limits: Int[Array, "requests rows"],
    bounds: Int[Array, "requests 2"],
    *,
    scale: float,
    splits: int,
) -> tuple[Float[Array, "requests splits rows latent"], Float[Array, "requests splits rows"]]:
    """Output and log-sum-exp (base e) of each piece of each request; float32 where there are several.

    `rows` is a multiple of 64. `starts` gives the pool row, a multiple of 8, of each run of 64 tokens of a request, and
    `limits` how many tokens each row sees. `bounds` are the highest and the lowest of them among rows that count.
    """
    requests, rows, width = query.shape
    require_supported(width - ROPE, ROPE, pool.dtype)
    sizes = Sizes(requests, rows, LATENT, ROPE, splits, scale)
    dtype = jnp.float32 if splits > 1 else query.dtype

    def body(*refs: Any, **shared: Any) -> None:
        block = Block(*refs, **shared)
        work, group = work_of(sizes, block), lax.axis_index("warpgroup")
        pl.when(group < _SOFTMAX_GROUPS)(lambda: softmax(sizes, block, work, group))
        pl.when(group >= _SOFTMAX_GROUPS)(lambda: values(sizes, block, work, group - _SOFTMAX_GROUPS))

    launch = plgpu.kernel(
        body,
        out_type=(
            jax.ShapeDtypeStruct((requests, splits, rows, LATENT), dtype),
            jax.ShapeDtypeStruct((requests, splits, rows), jnp.float32),
        ),
        scratch_types=_shared(sizes, query.dtype),
        grid=(requests, splits, rows // ROWS),  # blocks of the same latents are neighbours, and share them in the cache
        grid_names=("request", "split", "rows"),
        num_threads=_WARPGROUPS,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            unsafe_no_auto_barriers=True,
            reduction_scratch_bytes=512,
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
        ),
    )
    return launch(query, pool, starts, limits, bounds)


def _shared(sizes: Sizes, dtype: Any) -> dict[str, Any]:
    """Shared memory and barriers of a block, by the names of `Block`."""
    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return {
        "queries": plgpu.SMEM((1, ROWS, sizes.latent + sizes.rope), dtype, transforms=tiled),
        "latents": plgpu.SMEM((SLOTS * sizes.groups, TILE, COLUMNS), dtype, transforms=tiled),
        "ropes": plgpu.SMEM((SLOTS, TILE, sizes.rope), dtype, transforms=tiled),
        "weights": plgpu.SMEM((ROWS, TILE), dtype, transforms=tiled),
        "by_row": plgpu.SMEM((4, ROWS), jnp.float32),
        "loaded": plgpu.Barrier(num_barriers=SLOTS * (sizes.groups + 1)),
        "query_loaded": plgpu.Barrier(),
        "highest_known": plgpu.Barrier(num_barriers=SLOTS),
        "weights_ready": plgpu.Barrier(),
        "tile_done": plgpu.Barrier(num_arrivals=2, num_barriers=SLOTS),
        "total_ready": plgpu.Barrier(),
        "finished": plgpu.Barrier(),
    }
