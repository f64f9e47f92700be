"""Collectives over the mesh axes of a logical axis, inside `shard_map`: what to name comes from `Axes`.

A logical axis of size one spans no mesh axis, and JAX's collectives want at least one: here no axis means no exchange.
Dimensions are cut and joined in place (tiled): an all-gather over n ranks makes a dimension n times as long. Where a
logical axis spans several mesh axes, ranks count from the outermost, the order that `Axes.spec` cuts in.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

AxisNames = tuple[str, ...]


class Slices(NamedTuple):
    """What a rank gives each rank of its group: `sizes` rows from `starts` on, to stand from `places` on over there;
    and `arriving`, the rows that come from each. All int32."""

    starts: Int[Array, " ranks"]
    sizes: Int[Array, " ranks"]
    places: Int[Array, " ranks"]
    arriving: Int[Array, " ranks"]


def psum(x: jax.Array, axes: AxisNames) -> jax.Array:
    """Sum over the ranks of a group, the same on each."""
    return lax.psum(x, axes) if axes else x


def pmax(x: jax.Array, axes: AxisNames) -> jax.Array:
    """Largest over the ranks of a group, the same on each."""
    return lax.pmax(x, axes) if axes else x


def all_gather(x: jax.Array, axes: AxisNames, dim: int) -> jax.Array:
    """The ranks' arrays joined along `dim`, on each rank."""
    return lax.all_gather(x, axes, axis=dim, tiled=True) if axes else x


def all_gather_same(x: jax.Array, axes: AxisNames, dim: int) -> jax.Array:
    """`all_gather`, its result typed as equal on every rank, as an output that is cut along fewer axes asks for."""
    return lax.all_gather(x, axes, axis=dim, tiled=True, to="invarying") if axes else x


def reduce_scatter(x: jax.Array, axes: AxisNames, dim: int) -> jax.Array:
    """Sum over the ranks of a group, of which each keeps its part of `dim`."""
    return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True) if axes else x


def all_to_all(x: jax.Array, axes: AxisNames, split_dim: int, concat_dim: int) -> jax.Array:
    """Part i of `split_dim` goes to rank i; what arrives is joined along `concat_dim` in rank order."""
    return lax.all_to_all(x, axes, split_axis=split_dim, concat_axis=concat_dim, tiled=True) if axes else x


def ragged_all_to_all(
    x: Shaped[Array, "rows width"], onto: Shaped[Array, "room width"], slices: Slices, axes: AxisNames
) -> Shaped[Array, "room width"]:
    """`onto` with the rows that arrive written over its own, each rank's where that rank says. XLA has it for GPUs and
    TPUs; it checks no bound. Its result has the type of `onto`, which is therefore marked as one that may differ."""
    if not axes:
        return _written(x, onto, slices)
    varying = (*axes, *jax.typeof(x).manual_axis_type.varying)
    return lax.ragged_all_to_all(
        vary(x, axes), vary(onto, varying), *(vary(numbers, varying) for numbers in slices), axis_name=axes
    )


def _written(x: jax.Array, onto: jax.Array, slices: Slices) -> jax.Array:
    """The same of a lone rank, which sends to itself."""
    nth = jnp.arange(len(onto), dtype=jnp.int32) - slices.places[0]
    sent = jnp.take(x, slices.starts[0] + nth, axis=0, mode="clip")
    return jnp.where(((nth >= 0) & (nth < slices.sizes[0]))[:, None], sent, onto)


def shifted(x: jax.Array, axes: AxisNames, by: int) -> jax.Array:
    """The array of the rank `by` places behind this one, around the group."""
    ranks = axis_size(axes)
    return lax.ppermute(x, axes, [((rank + by) % ranks, rank) for rank in range(ranks)]) if by % ranks else x


def axis_index(axes: AxisNames) -> jax.Array:
    """This rank's number in its group (int32)."""
    return lax.axis_index(axes) if axes else jnp.int32(0)


def axis_size(axes: AxisNames) -> int:
    """Ranks of a group."""
    return lax.axis_size(axes) if axes else 1


def vary(x: jax.Array, axes: AxisNames) -> jax.Array:
    """Mark a value that is the same on every rank as one that may differ, as loop carries and branches ask for."""
    missing = tuple(name for name in axes if name not in jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, missing, to="varying") if missing else x


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Values marked as ones that differ wherever one of them does, as a kernel asks for what it is given."""
    axes = dict.fromkeys(name for x in arrays for name in jax.typeof(x).manual_axis_type.varying)
    return tuple(vary(x, tuple(axes)) for x in arrays)
