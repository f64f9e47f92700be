"""Weights kept by rows on the cards of a group, brought together one layer ahead of their use.

All the weights of a layer travel in one all-gather of bytes, whatever they are stored in: that buffer is what a
staging buffer holds. Two are alive at a time: the layer at work reads one while the next layer's arrives in the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, UInt8

from layouts.collectives import all_gather_same
from layouts.mesh import Axes
from layouts.shapes import ShapeError

Weights = tuple[Array, ...]


@dataclass(frozen=True)
class Packing:
    """Shapes and dtypes of a rank's shards, in the order in which they stand in the message."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[jnp.dtype, ...]

    @staticmethod
    def of(shards: Sequence[Array]) -> "Packing":
        """Of one layer's shards, which are cut along their first axis."""
        if any(shard.ndim == 0 for shard in shards):
            raise ShapeError("weight gather: a single number has no rows to shard: keep it whole")
        return Packing(tuple(s.shape for s in shards), tuple(jnp.dtype(s.dtype) for s in shards))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each shard."""
        return tuple(math.prod(s) * d.itemsize for s, d in zip(self.shapes, self.dtypes, strict=True))

    def pack(self, shards: Sequence[Array]) -> UInt8[Array, " bytes"]:
        """A rank's message."""
        return jnp.concatenate([lax.bitcast_convert_type(s, jnp.uint8).reshape(-1) for s in shards])

    def unpack(self, staged: UInt8[Array, " ranks_bytes"]) -> Weights:
        """The whole weights in a staging buffer."""
        by_rank, starts = staged.reshape(-1, sum(self.sizes)), [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return tuple(
            self._weight(by_rank[:, start : start + size], shape, dtype)
            for start, size, shape, dtype in zip(starts, self.sizes, self.shapes, self.dtypes, strict=True)
        )

    def _weight(self, raw: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
        whole = (raw.shape[0] * shape[0], *shape[1:])
        per_value = () if dtype.itemsize == 1 else (dtype.itemsize,)
        return lax.bitcast_convert_type(raw.reshape(*whole, *per_value), dtype)


def gather(shards: Sequence[Array], axes: Axes) -> UInt8[Array, " ranks_bytes"]:
    """A staging buffer with the whole weights of a layer, from every rank's rows: one exchange."""
    return all_gather_same(Packing.of(shards).pack(shards), axes["weight_shard"], 0)
