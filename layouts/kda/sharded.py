"""KDA on a mesh: heads over attn_tp, requests and their state slots over attn_dp. How they are cut.

A head never looks at another and a request never at another's state, so nothing is exchanged here. The bodies
(`layouts.kda.verify`) return the sum over a rank's own heads; the caller sums over attn_tp as its layer wants it
(all-reduce, or reduce-scatter on the way to the experts). Slots are numbered within a rank.
"""

from typing import Any, Final

import jax
from jax.sharding import PartitionSpec

from layouts.kda.chunked import Writes
from layouts.kda.reference import Weights
from layouts.kda.shape import KDA
from layouts.kda.slots import Slots
from layouts.mesh import Axes

_HEADS_AT: Final = {"qkv_proj": 1, "conv1d": 1, "o_proj": 1, "f_a_proj": None, "g_a_proj": None, "o_norm": None}


def weight_shapes(kda: KDA) -> Any:
    """Shape of every weight of one layer, whole: Weights with a tuple in place of each array."""
    heads, dim, hidden = kda.heads, kda.head_dim, kda.hidden
    full: Any = {"g_proj": (heads, dim, hidden)}
    low_rank: Any = {"g_a_proj": (dim, hidden), "g_b_proj": (heads, dim, dim)}
    shapes: Any = {
        "qkv_proj": (3, heads, dim, hidden),
        "conv1d": (3, heads, dim, kda.conv_kernel),
        "f_a_proj": (dim, hidden),
        "f_b_proj": (heads, dim, dim),
        "A_log": (heads,),
        "dt_bias": (heads, dim),
        "b_proj": (heads, hidden),
        "o_norm": (dim,),
        "o_proj": (hidden, heads, dim),
        **(full if kda.full_rank_gate else low_rank),
    }
    return Weights(**shapes)


def weight_specs(kda: KDA, axes: Axes) -> Any:
    """A spec for each weight that is there: cut along its heads, or whole where it has none."""

    def spec(path: Any, shape: tuple[int, ...]) -> PartitionSpec:
        heads_at = _HEADS_AT.get(path[0].name, 0)
        return axes.spec(*("attn_tp" if i == heads_at else None for i in range(len(shape))))

    shapes = weight_shapes(kda)
    return jax.tree_util.tree_map_with_path(spec, shapes, is_leaf=lambda x: isinstance(x, tuple))


def slot_shapes(kda: KDA, slots: int, ring: int) -> Any:
    """Shape of a pool of slots, each with a ring of as many tokens: Slots with a tuple in place of each array."""
    writes: Any = (slots, ring, kda.heads, kda.head_dim)
    recurrent: Any = (slots, kda.heads, kda.head_dim, kda.head_dim)
    inputs: Any = (slots, kda.conv_kernel - 1 + ring, 3, kda.heads, kda.head_dim)
    return Slots(recurrent, Writes(writes, writes, writes), inputs)


def slot_specs(axes: Axes) -> Any:
    """How they are cut: Slots with a spec in place of each array."""
    recurrent: Any = axes.spec("requests", "attn_tp", None, None)
    writes: Any = axes.spec("requests", None, "attn_tp", None)
    inputs: Any = axes.spec("requests", None, None, "attn_tp", None)
    return Slots(recurrent, Writes(writes, writes, writes), inputs)
