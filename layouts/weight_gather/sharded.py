"""Weights kept by rows on the cards of a group, brought together one layer ahead of their use.

Each weight of a layer travels in an all-gather of its own, which writes it as it is used: one message of all of them
would be packed and unpacked, three passes over a layer's bytes through HBM a step. What arrives is the layer's staging
buffer. The parts of two layers are alive at a time: what the layer at work still reads, and what of the next has come.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from layouts.collectives import all_gather_same
from layouts.mesh import Axes
from layouts.shapes import ShapeError

Weights = tuple[Shaped[Array, "rows ..."], ...]


def gather(shards: Sequence[Shaped[Array, "shard_rows ..."]], axes: Axes) -> Weights:
    """The whole weights of a layer, from every rank's rows: an exchange each. ShapeError for a single number."""
    if any(shard.ndim == 0 for shard in shards):
        raise ShapeError("weight gather: a single number has no rows to shard: keep it whole")
    return tuple(_whole(shard, axes) for shard in shards)


def _whole(shard: Array, axes: Axes) -> Array:
    """As bytes where a value is one: not every backend sends every float of eight bits."""
    if jnp.dtype(shard.dtype).itemsize > 1:
        return all_gather_same(shard, axes["weight_shard"], 0)
    raw = all_gather_same(lax.bitcast_convert_type(shard, jnp.uint8), axes["weight_shard"], 0)
    return lax.bitcast_convert_type(raw, shard.dtype)
