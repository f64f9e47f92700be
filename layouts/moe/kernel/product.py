"""Rows in the order of their experts times the weights of these, each weight read once for a tile of rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from layouts.collectives import vary_alike
from layouts.moe.kernel.factor import Factor, within_reach
from layouts.moe.kernel.operand import Operand
from layouts.moe.kernel.order import Order
from layouts.moe.kernel.tile import Tile
from layouts.shapes import ShapeError


class Ends(NamedTuple):
    """How rows are read and written: in the order of the experts, or by the number of the choice in it.

    `source`: choices of a row of x, which stands where they came from; 0 if x is in the order of the experts.
    `back`: results go where the choices came from.
    """

    source: int = 0
    back: bool = False


def product(
    x: Float[Array, "rows inputs"],
    factor: Factor,
    *,
    order: Order,
    room: int,
    ends: Ends,
    finish: Callable[..., Array],
    result: Operand,
    tile: Tile,
    multiprocessors: int,
    interpret: bool = False,
) -> Float[Array, "room columns"]:
    """`finish` of each row's sums (float32, one array a run) with its expert's weights, as `result`.

    `finish` acts value by value; x is as `factor.operand` says. Rows of the result that no choice fills hold anything.
    Raises ShapeError for weights that no tile fits and bytes that lie out of reach.
    """
    columns = factor.values.shape[2]
    tile = tile.fitted(*factor.whole)
    if not within_reach(factor.values):
        raise ShapeError(
            f"grouped GEMM: {factor.values.size} weights of a byte are beyond the kernel's addresses: use another form"
        )
    programs = multiprocessors * tile.programs
    arrays = vary_alike(x, order.choice, order.starts, *factor.arrays)

    def body(*refs: Any) -> None:
        x_ref, choice, starts, *weights, out = refs
        problem = _Problem(x_ref, choice, starts, factor.of(weights), out)
        _all_tiles(problem, ends, lambda *sums: result.of(finish(*sums)), tile, programs)

    kind = jax.typeof(arrays[0]).manual_axis_type
    launch = pl.pallas_call(
        body,
        grid=(programs,),
        out_shape=jax.ShapeDtypeStruct((room, columns), result.dtype, manual_axis_type=kind),
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name="experts",
    )
    return launch(*arrays)


class _Problem(NamedTuple):
    """References of the arrays in memory."""

    x: Any
    choice: Any
    starts: Any
    factor: Factor
    out: Any


class _Rows(NamedTuple):
    """Rows of a tile: where they are read and written, and which there are."""

    expert: jax.Array
    source: jax.Array
    to: jax.Array
    real: jax.Array


def _all_tiles(problem: _Problem, ends: Ends, finish: Callable[..., Array], tile: Tile, programs: int) -> None:
    """The tiles of this program: each `programs`-th of all. Those of the same columns follow each other, so that what
    several tiles of an expert share is still in the cache."""
    held, _, columns, _ = problem.factor.values.shape
    number = jnp.arange(max(2, 1 << (held - 1).bit_length()), dtype=jnp.int32)
    lower, upper = (triton.load(problem.starts.at[number + i], mask=number < held, other=0) for i in (0, 1))
    tiles = lax.div(upper - lower + tile.rows - 1, jnp.int32(tile.rows))
    passed, total = jnp.cumsum(tiles), tiles.sum()
    first = pl.program_id(0)

    def one(i: Any, _: None) -> None:
        at = first + i * programs
        index, column = lax.rem(at, total), lax.div(at, total) * tile.columns
        expert = (passed <= index).astype(jnp.int32).sum()

        def of_expert(values: jax.Array) -> jax.Array:
            return jnp.where(number == expert, values, 0).sum()

        start = of_expert(lower) + (index - of_expert(passed - tiles)) * tile.rows
        row = start + jnp.arange(tile.rows, dtype=jnp.int32)
        real = row < of_expert(upper)
        choice = row
        if ends.source or ends.back:
            choice = triton.load(problem.choice.at[row], mask=real, other=0)
        source = lax.div(choice, jnp.int32(ends.source)) if ends.source else row
        # no two rows go to one place, not even those that do not count: the interpreter would write them all
        to = jnp.where(real, choice, problem.out.shape[0] + row) if ends.back else row
        rows = _Rows(expert, source, to, real)
        sums = _sums(problem, rows, column, tile)
        _leave(problem, rows, column, finish, sums, tile)

    lax.fori_loop(0, taken(total * (columns // tile.columns), first, programs), one, None)


def taken(tiles: jax.Array, first: jax.Array, programs: int) -> jax.Array:
    """How many of so many tiles a program takes that takes each `programs`-th from `first` on; one more would lie
    beyond the arrays."""
    return lax.div(tiles - first + programs - 1, jnp.int32(programs))


def _sums(problem: _Problem, rows: _Rows, column: jax.Array, tile: Tile) -> tuple[jax.Array, ...]:
    """Products over all inputs. Columns of the weights are the rows of a product of the tensor cores: they are many,
    where few rows of x would leave most of it empty."""
    factor = problem.factor
    _, runs, _, inputs = factor.values.shape
    steps = inputs // tile.inputs

    def scales(step: Any) -> tuple[jax.Array, ...]:
        if factor.scale is None:
            return ()
        blocks = (column, step * tile.inputs)
        place = tuple(lax.div(at, jnp.int32(size)) for at, size in zip(blocks, factor.block, strict=True))
        return tuple(factor.scale[rows.expert, jnp.int32(run), *place] * factor.smaller for run in range(runs))

    def part(run: int, x: jax.Array, at: Any) -> jax.Array:
        place = (rows.expert, jnp.int32(run), pl.ds(column, tile.columns), pl.ds(at, tile.inputs))
        return jnp.dot(factor.values[place].astype(x.dtype), x.T, preferred_element_type=jnp.float32)

    def step(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, factors = carry
        at = i * tile.inputs
        x = triton.load(_matrix(problem.x, rows.source, at, tile.inputs), mask=rows.real[:, None], other=0.0)
        parts = [part(run, x, at) for run in range(runs)]
        if factors:
            parts = [one * each for one, each in zip(parts, factors, strict=True)]
        # scales of the next step, so that they are there when it comes
        following = scales(jnp.minimum(i + 1, steps - 1))
        return tuple(sum_ + one for sum_, one in zip(sums, parts, strict=True)), following

    none = tuple(jnp.zeros((tile.columns, tile.rows), jnp.float32) for _ in range(runs))
    return lax.fori_loop(0, steps, step, (none, scales(jnp.int32(0))))[0]


def _leave(
    problem: _Problem,
    rows: _Rows,
    column: jax.Array,
    finish: Callable[..., Array],
    sums: tuple[jax.Array, ...],
    tile: Tile,
) -> None:
    if problem.factor.bias is not None:
        bias = problem.factor.bias
        at = pl.ds(column, tile.columns)
        sums = tuple(one + bias[rows.expert, jnp.int32(run), at][:, None] for run, one in enumerate(sums))
    whole = _matrix(problem.out, rows.to, column, tile.columns)
    triton.store(whole, finish(*sums).T, mask=rows.real[:, None])


def _matrix(ref: Any, rows: jax.Array, at: Any, size: int) -> Any:
    """Reference of rows; with a slice for its columns the backend would take it, its interpreter would not."""
    return ref.at[rows[:, None], at + jnp.arange(size, dtype=jnp.int32)[None, :]]
