"""What the warpgroups of a block share: sizes, references, the share of the work, and two lines of assembly."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu
import jax.numpy as jnp
from jax import lax
from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import arith, vector
from jax._src.lib.mlir.dialects import llvm as llvm_dialect
from jax.experimental.mosaic import gpu as mgpu

# untyped: the signatures are those of JAX 0.11, and checks run on older ones too
plgpu: Final[Any] = jax.experimental.pallas.mosaic_gpu
llvm: Final[Any] = llvm_dialect
ROWS: Final = 64  # query rows of a block: what one product instruction takes
TILE: Final = 64  # tokens of a step
COLUMNS: Final = 128  # latent columns that are loaded, and accumulated, together
SLOTS: Final = 2  # tiles in shared memory
MATRIX: Final = plgpu.Layout.WGMMA
ROW: Final = plgpu.Layout.WGMMA.reduce(1)
_SCALAR: Final = plgpu.Layout.WG_SPLAT(())
# lines of Block.by_row
RESCALE: Final = 0
HIGHEST: Final = 1  # and the next: one of each softmax warpgroup
TOTAL: Final = 3


@dataclass(frozen=True)
class Sizes:
    """Static sizes of a launch; `rows` is a multiple of `ROWS`."""

    requests: int
    rows: int
    latent: int
    rope: int
    splits: int
    scale: float

    @property
    def groups(self) -> int:
        """Column groups of a latent."""
        return self.latent // COLUMNS

    @property
    def rope_barrier(self) -> int:
        """The barrier of the rotary part among those of a tile, behind those of the column groups."""
        return self.groups


class Block(NamedTuple):
    """References of a block: inputs and outputs in device memory, the rest in shared memory."""

    query: Any
    pool: Any
    starts: Any
    limits: Any
    bounds: Any
    part: Any
    lse: Any
    queries: Any
    latents: Any
    ropes: Any
    weights: Any
    by_row: Any
    loaded: Any
    query_loaded: Any
    highest_known: Any
    weights_ready: Any
    tile_done: Any
    total_ready: Any
    finished: Any

    def row(self, line: jax.Array | int) -> jax.Array:
        """A line of `by_row`, one value a query row."""
        return plgpu.load(self.by_row.at[line], layout=ROW, optimized=False)


class Work(NamedTuple):
    """What a block does: query rows from `row` on, `tiles` tiles from `first` on of a request.

    Its longest row sees `high` tokens, its shortest `low`.
    """

    request: jax.Array
    split: jax.Array
    row: jax.Array
    first: jax.Array
    tiles: jax.Array
    high: jax.Array
    low: jax.Array


def work_of(sizes: Sizes, block: Block) -> Work:
    """The share of this block of the grid: requests x splits x groups of rows."""
    request, split = lax.axis_index("request"), lax.axis_index("split")
    high, low = block.bounds[request, 0], block.bounds[request, 1]
    tiles = (high + (TILE - 1)) // TILE
    each = (tiles + (sizes.splits - 1)) // sizes.splits
    first = split * each
    count = jnp.maximum(jnp.minimum(first + each, tiles) - first, 0)
    return Work(request, split, lax.axis_index("rows") * ROWS, first, count, high, low)


@plgpu.inline_mgpu(arg_types=(_SCALAR,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=_SCALAR))
def opaque(_: Any, number: Any) -> Any:
    """The same number, unknown to the compiler.

    Descriptors of shared memory that are made of it are not kept in registers from step to step, which a warpgroup with
    96 registers has no room for.
    """
    if isinstance(number, mgpu.FragmentedArray):
        number = number.registers.item()
    same = llvm.inline_asm(number.type, [number], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)
    return mgpu.FragmentedArray.splat(same, shape=(), is_signed=True)


@plgpu.inline_mgpu(arg_types=(ROW,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=_SCALAR))
def rescales(_: Any, factors: Any) -> Any:
    """Whether a factor of this warp's rows is not 1. Warps may differ: nothing that depends on it may synchronize."""
    integer, real = ir.IntegerType.get_signless(32), ir.F32Type.get()
    one = arith.constant(real, ir.FloatAttr.get(real, 1.0))
    found: Any = None
    for register in factors.registers.flat:
        if isinstance(register.type, ir.VectorType):
            register = vector.extract(register, [], [0])
        differs = arith.cmpf(arith.CmpFPredicate.UNE, register, one)
        found = differs if found is None else arith.ori(found, differs)
    text = "{ .reg .pred p, q; setp.ne.s32 p, $1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.s32 $0, 1, 0, q; }"
    any_of_warp = llvm.inline_asm(integer, [arith.extui(integer, found)], text, "=r,r", has_side_effects=True)
    return mgpu.FragmentedArray.splat(any_of_warp, shape=(), is_signed=True)


def spread(by_row: jax.Array, like: jax.Array) -> jax.Array:
    """One value a row over the columns of a matrix."""
    return lax.broadcast_in_dim(by_row, like.shape, [0])
