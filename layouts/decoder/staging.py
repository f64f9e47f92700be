"""Weights of a layer that are kept by rows over the weight-shard group: gathered whole, a layer ahead of their use."""

from typing import Any

import jax
from jax import lax

from layouts.kernels import PLAIN
from layouts.mesh import Axes
from layouts.weight_gather.sharded import Weights, gather

WHOLE = -1  # in place of an axis: a weight that is not kept in parts
Along = tuple[int, ...]  # for each leaf of a layer's weights the axis that it is kept in parts along


def arriving(weights: Any, along: Along, axes: Axes, carried: Any, form: str = PLAIN) -> Weights:
    """The staging buffer of a layer: the weights that are kept in parts, whole.

    It does not begin to arrive before what is `carried` to the layer that hides it is there: nothing else would keep a
    scheduler from gathering every layer at first, with all buffers alive and no compute left to hide them.
    """
    kept = [(leaf, axis) for leaf, axis in zip(jax.tree.leaves(weights), along, strict=True) if axis != WHOLE]
    parts, _ = lax.optimization_barrier(([leaf for leaf, _ in kept], carried))
    return gather(parts, [axis for _, axis in kept], axes, form)


def arrived(carried: Any, buffer: Weights) -> tuple[Any, Weights]:
    """What a layer leaves and the staging buffer that came beside it, once both are there.

    They are tied here and not where each weight is used: XLA lets one that is used late in its layer arrive as late,
    under the few kernels before it instead of those of a whole layer.
    """
    return lax.optimization_barrier((carried, buffer))


def staged(weights: Any, along: Along, buffer: Weights) -> Any:
    """The layer's weights with those that arrived in the buffer in place of the parts."""
    leaves, structure = jax.tree.flatten(weights)
    whole = iter(buffer)
    return jax.tree.unflatten(
        structure, [leaf if axis == WHOLE else next(whole) for leaf, axis in zip(leaves, along, strict=True)]
    )
