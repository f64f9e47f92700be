"""A weight in the blocks that it arrived in, one from each rank of a group.

Blocks that ranks copy to each other arrive in arrays of their own. To join them would be two more passes over the
weight through HBM; a product with each of them instead reads it once, and joins the outputs of a few rows.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from layouts.collectives import AxisNames, axis_index


class Blocks(eqx.Module):
    """Equal parts of a weight along `axis`: this rank's own, then those of the ranks behind it around the group `axes`.

    It has a weight's `shape`, `dtype` and `astype`, the last with all of it in one array; `layouts.linear.contract`
    multiplies by its blocks.
    """

    blocks: tuple[Shaped[Array, "..."], ...]
    axis: int = eqx.field(static=True)
    axes: AxisNames = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the whole weight."""
        sizes = list(self.blocks[0].shape)
        sizes[self.axis] *= len(self.blocks)
        return tuple(sizes)

    @property
    def dtype(self) -> jnp.dtype:
        return self.blocks[0].dtype

    def astype(self, dtype: jax.typing.DTypeLike) -> Shaped[Array, "..."]:
        """The whole weight."""
        return self.in_order(self.blocks, self.axis).astype(dtype)

    def in_order(self, parts: Sequence[Shaped[Array, "..."]], axis: int) -> Shaped[Array, "..."]:
        """What was made of each block, joined along an axis in the order of the ranks."""
        joined = jnp.concatenate(parts, axis)
        return jnp.roll(joined, axis_index(self.axes) * parts[0].shape[axis], axis)
