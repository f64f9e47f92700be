"""What the warpgroups of a block share: sizes, references, the pieces of its gang, and a few lines of assembly."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import arith, vector
from jax._src.lib.mlir.dialects import llvm as llvm_dialect
from jax.experimental.mosaic import gpu as mgpu

from layouts.mla.hopper.schedule import piece_of, request_at, share_of
from layouts.mla.shares import ROWS, TILE
from layouts.mosaic import plgpu

llvm: Final[Any] = llvm_dialect  # untyped, as plgpu is
COLUMNS: Final = 128  # latent columns that are loaded, and accumulated, together
SLOTS: Final = 2  # tiles in shared memory
MATRIX: Final = plgpu.Layout.WGMMA
ROW: Final = plgpu.Layout.WGMMA.reduce(1)
SCALAR: Final = plgpu.Layout.WG_SPLAT(())
ATOM: Final = 8  # rows of a swizzle
TILED: Final = (plgpu.TilingTransform((ATOM, 64)), plgpu.SwizzleTransform(128))  # of operands of two bytes
WARP_ROWS: Final = 16  # rows of a matrix that a warp holds, and that are written or not
# lines of Block.by_row
RESCALE: Final = 0
HIGHEST: Final = 1  # and the next: one of each softmax warpgroup
TOTAL: Final = 3


@dataclass(frozen=True)
class Sizes:
    """Static sizes of a launch.

    A request has `verify` x `heads` query rows, and `rows` of them in the arrays of the kernel, a multiple of
    `WARP_ROWS`. `run` of its tokens lie together in the pool, whose values are of one byte if it is `packed`.
    """

    requests: int
    verify: int
    heads: int
    latent: int
    rope: int
    gangs: int
    run: int
    packed: bool
    scale: float

    @property
    def rows(self) -> int:
        """Query rows of a request."""
        return -(-self.verify * self.heads // WARP_ROWS) * WARP_ROWS

    @property
    def blocks(self) -> int:
        """Blocks that the query rows of a request need."""
        return -(-self.rows // ROWS)

    @property
    def groups(self) -> int:
        """Column groups of a latent."""
        return self.latent // COLUMNS

    @property
    def rope_barrier(self) -> int:
        """The barrier of the rotary part among those of a tile, behind those of the column groups."""
        return self.groups

    @property
    def runs(self) -> int:
        """Runs of tokens of a tile."""
        return TILE // self.run


class Block(NamedTuple):
    """References of a block: inputs and outputs in device memory, the rest in shared memory."""

    query: Any
    pool: Any
    starts: Any
    limits: Any
    begins: Any
    whole: Any
    whole_lse: Any
    part: Any
    part_lse: Any
    queries: Any
    latents: Any
    ropes: Any
    packed_latents: Any
    packed_ropes: Any
    weights: Any
    by_row: Any
    loaded: Any
    query_loaded: Any
    highest_known: Any
    weights_ready: Any
    tile_done: Any
    total_ready: Any
    finished: Any
    factor_read: Any

    def row(self, line: jax.Array | int) -> jax.Array:
        """A line of `by_row`, one value a query row."""
        return plgpu.load(self.by_row.at[line], layout=ROW, optimized=False)


class Work(NamedTuple):
    """A piece of a request that a block passes over: `tiles` tiles from `first` on, for query rows from `row` on.

    The longest row of the request sees `high` tokens, the shortest `low`. The piece is `whole` if there is no other;
    else its results go to the rows from `slot` on of the parts.
    """

    request: jax.Array
    row: jax.Array
    first: jax.Array
    tiles: jax.Array
    high: jax.Array
    low: jax.Array
    whole: jax.Array
    slot: jax.Array

    def leave(self, sizes: Sizes, whole: Callable[[Any], None], part: Callable[[Any], None]) -> None:
        """Calls one of two with the rows of `whole` or `part` that this warp's are, if they are rows of the request.

        Warps differ: neither may synchronize.
        """
        real = self.row + warp_row() < sizes.rows
        pl.when(real & self.whole)(lambda: whole(pl.ds(self.request * sizes.rows + self.row, ROWS)))
        pl.when(real & ~self.whole)(lambda: part(pl.ds(self.slot + self.row, ROWS)))


def each_piece(sizes: Sizes, block: Block, do: Callable[[Work], None]) -> None:
    """Every piece of the share of this block's gang, one after the other."""
    gang, row = lax.axis_index("gang"), lax.axis_index("rows") * ROWS
    share = share_of(block.begins, sizes.requests, sizes.gangs)
    begin = gang * share
    first, last = (request_at(block.begins, sizes.requests, x) for x in (begin, begin + share - 1))

    def step(request: jax.Array, _: None) -> None:
        piece = piece_of(block.begins[request], block.begins[request + 1], begin, begin + share)
        limits = [block.limits[request, token] for token in range(sizes.verify)]
        high, low = functools.reduce(jnp.maximum, limits), functools.reduce(jnp.minimum, limits)
        slot = jnp.where(piece.first == 0, sizes.gangs + gang, gang) * sizes.rows
        work = Work(request, row, piece.first, piece.tiles, high, low, piece.whole, slot)
        pl.when(piece.tiles > 0)(lambda: do(work))

    lax.fori_loop(first, last + 1, step, None)


@plgpu.inline_mgpu(arg_types=(), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=SCALAR))
def warp_row(_: Any) -> Any:
    """The first row of a matrix that this warp holds."""
    integer = ir.IntegerType.get_signless(32)
    warp = arith.remui(mgpu.utils.warp_idx(), arith.constant(integer, 4))
    row = arith.muli(warp, arith.constant(integer, WARP_ROWS))
    return mgpu.FragmentedArray.splat(row, shape=(), is_signed=True)


@plgpu.inline_mgpu(arg_types=(SCALAR,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=SCALAR))
def opaque(_: Any, number: Any) -> Any:
    """The same number, unknown to the compiler.

    Descriptors of shared memory that are made of it are not kept in registers from step to step, which a warpgroup with
    96 registers has no room for.
    """
    if isinstance(number, mgpu.FragmentedArray):
        number = number.registers.item()
    same = llvm.inline_asm(number.type, [number], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)
    return mgpu.FragmentedArray.splat(same, shape=(), is_signed=True)


@plgpu.inline_mgpu(arg_types=(ROW,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=SCALAR))
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
