"""Weights kept by rows on the cards of a group, brought together one layer ahead of their use.

Each weight of a layer travels by itself: one message of all of them would be packed and unpacked, three passes over a
layer's bytes through HBM a step. What arrives is the layer's staging buffer. The parts of two layers are alive at a
time: what the layer at work still reads, and what of the next has come.
"""

from collections.abc import Sequence
from typing import Final

import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Shaped

from layouts.collectives import all_gather_same, axis_size, shifted
from layouts.kernels import PLAIN
from layouts.mesh import Axes
from layouts.shapes import ShapeError
from layouts.weight_gather.blocks import Blocks

# A hint to XLA (collective_ops_utils.h): its scheduler takes such an exchange to be longer than whatever may hide it,
# and starts it as soon as it may. Others it takes to last as long as any five products, and starts them that late.
_EARLY: Final = {"_xla_gpu_collective_stream": "p2p"}
COPIES: Final = "copies"  # each rank's block by a copy of its own, which copy engines make and no SM
Weights = tuple[Shaped[Array, "..."] | Blocks, ...]


def gather(shards: Sequence[Shaped[Array, "..."]], along: Sequence[int], axes: Axes, form: str = PLAIN) -> Weights:
    """The whole weights of a layer, from every rank's part of each along an axis. ShapeError for a single number."""
    if any(shard.ndim == 0 for shard in shards):
        raise ShapeError("weight gather: a single number has no rows to shard: keep it whole")
    bring = _copied if form == COPIES else _joined
    return tuple(bring(shard, axis, axes) for shard, axis in zip(shards, along, strict=True))


def _joined(shard: Array, axis: int, axes: Axes) -> Array:
    """By an all-gather; as bytes where a value is one: not every backend sends every float of eight bits."""
    front = jnp.moveaxis(shard, axis, 0)
    if jnp.dtype(shard.dtype).itemsize > 1:
        return jnp.moveaxis(all_gather_same(front, axes["weight_shard"], 0), 0, axis)
    raw = all_gather_same(lax.bitcast_convert_type(front, jnp.uint8), axes["weight_shard"], 0)
    return jnp.moveaxis(lax.bitcast_convert_type(raw, shard.dtype), 0, axis)


def _copied(shard: Array, axis: int, axes: Axes) -> Blocks:
    names = axes["weight_shard"]
    with set_xla_metadata(**_EARLY):
        return Blocks(tuple(shifted(shard, names, by) for by in range(axis_size(names))), axis, names)
