"""Residual stream and RMSNorm inside `shard_map`: the ranks of an attention group bring partial sums of its rows.

Replicated: the partial sums are all-reduced and every rank norms every row. Row-scattered: they are reduce-scattered,
each rank keeps rows / attn_tp rows of the stream and norms those; the stream may stay so through all layers, and only
normed rows are gathered, where the next part wants all of them.
"""

import jax
from jaxtyping import Array, Float

from layouts.collectives import AxisNames, all_gather_same, axis_index, axis_size, psum, reduce_scatter
from layouts.residual.reference import add_norm

Stream = tuple[Float[Array, "rows hidden"], Float[Array, "rows hidden"]]


def add_norm_replicated(
    partial: Float[Array, "rows hidden"],
    residual: Float[Array, "rows hidden"],
    weight: Float[Array, " hidden"],
    eps: float,
    axes: AxisNames,
) -> Stream:
    """Normed rows and stream, all rows on every rank of `axes`. `partial` is this rank's part of the update."""
    return add_norm(psum(partial, axes), residual, weight, eps)


def add_norm_scattered(
    partial: Float[Array, "rows hidden"],
    residual: Float[Array, "own_rows hidden"],
    weight: Float[Array, " hidden"],
    eps: float,
    axes: AxisNames,
) -> Stream:
    """Normed rows and stream, rows / ranks of them on each rank of `axes`: rank r has the r-th run of rows.

    The rows must be padded to a multiple of the ranks, as engines do.
    """
    return add_norm(reduce_scatter(partial, axes, 0), residual, weight, eps)


def own_rows(x: Float[Array, "rows hidden"], axes: AxisNames) -> Float[Array, "own_rows hidden"]:
    """This rank's run of rows that all ranks of `axes` hold."""
    rows = x.shape[0] // axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, axis_index(axes) * rows, rows, axis=0)


def all_rows(x: Float[Array, "own_rows hidden"], axes: AxisNames) -> Float[Array, "rows hidden"]:
    """Every rank's run of rows, on each."""
    return all_gather_same(x, axes, 0)
