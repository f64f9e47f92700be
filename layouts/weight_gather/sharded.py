"""Weights kept by rows on the cards of a group, brought together one layer ahead of their use.

Each weight of a layer stays a buffer of its own: one message of all of them would be packed and unpacked, three passes
over a layer's bytes through HBM a step. What arrives is the layer's staging buffer. The parts of two layers are alive
at a time: what the layer at work still reads, and what of the next has come.
"""

from collections.abc import Sequence
from typing import Final

import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Shaped

from layouts.collectives import AxisNames, all_gather_same, axis_size, shifted
from layouts.kernels import PLAIN
from layouts.mesh import Axes
from layouts.shapes import ShapeError
from layouts.weight_gather.blocks import Blocks

# A hint to XLA: its scheduler takes such an exchange to last as long as a hundred products, and so starts it as soon as
# it may; others as long as five. Of those with the hint it lets four be under way, and more would wait for each other
# (openxla/xla, gpu_latency_hiding_scheduler.cc: GetLatencyBetween, kNumAsyncCollectivesP2P).
_EARLY: Final = {"_xla_gpu_collective_stream": "p2p"}
_AT_ONCE: Final = 4
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
    return Blocks(tuple(_copy(shard, names, by) for by in range(axis_size(names))), axis, names)


def _copy(shard: Array, names: AxisNames, by: int) -> Array:
    if by > _AT_ONCE:
        return shifted(shard, names, by)
    with set_xla_metadata(**_EARLY):
        return shifted(shard, names, by)
