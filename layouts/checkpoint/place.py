"""From views to arrays on devices: each device's part is read, cast and sent, one weight at a time."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from layouts.checkpoint.views import View


def place(views: Any, shardings: Any, dtype: jax.typing.DTypeLike | None = None) -> Any:
    """A tree of arrays for a tree of views and one of shardings of the same structure.

    `dtype`: of every array; None keeps what the checkpoint has. A process reads the parts of its own devices only, and
    a weight is on the devices before the next one is read.
    """
    return jax.tree.map(
        lambda view, sharding: _placed(view, sharding, view.dtype if dtype is None else np.dtype(dtype)),
        views,
        shardings,
        is_leaf=lambda node: isinstance(node, View),
    )


def read_part(view: View, index: tuple[slice, ...], dtype: np.dtype) -> np.ndarray:
    """A device's part of a weight as it is sent: the index as JAX gives it, row-major, in the dtype."""
    return np.ascontiguousarray(view[index], dtype)


def _placed(view: View, sharding: Sharding, dtype: np.dtype) -> jax.Array:
    placed = jax.make_array_from_callback(view.shape, sharding, lambda index: read_part(view, index or (), dtype))
    return placed.block_until_ready()
