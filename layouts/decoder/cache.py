"""What a decoder keeps between steps, layer by layer: a KV pool, or slots of linear-attention states."""

from dataclasses import dataclass
from typing import Any

import layouts.kda.sharded as kda
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.mesh import Axes
from layouts.mla import MLA
from layouts.models.layer import Attention


@dataclass(frozen=True)
class Room:
    """Rows of one rank's KV pool, and state slots of one attention group, the sinks included."""

    pool_rows: int
    slots: int


def cache_shapes(attention: Attention, layout: Layout, room: Room) -> Any:
    """Shapes of one layer's cache over all ranks."""
    groups = layout.replicas * layout.attn_dp
    rows = groups * layout.attn_tp * room.pool_rows
    match attention:
        case MLA():
            return (rows, attention.kv_values)
        case GQA():
            return (rows, max(attention.kv_heads // layout.attn_tp, 1), 2 * attention.head_dim)
        case KDA():
            return kda.state_shapes(attention, groups * room.slots)


def cache_specs(attention: Attention, axes: Axes) -> Any:
    """How they are cut: every rank has a pool of its own; states are cut by request group and head."""
    match attention:
        case MLA():
            return axes.spec("pools", None)
        case GQA():
            return axes.spec("pools", None, None)
        case KDA():
            return kda.state_specs(axes)
