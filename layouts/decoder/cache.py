"""What a decoder keeps between steps, layer by layer: a KV pool, or slots of linear-attention states."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jaxtyping import Array, Float

import layouts.dsa.sharded as dsa
import layouts.gqa.sharded as gqa
import layouts.kda.sharded as kda
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.mesh import Axes
from layouts.mla import MLA
from layouts.models.layer import Attention

INDEX_DESIGN: Final = "replicated"  # what engines do by default, and what the cost side charges


class Sparse(NamedTuple):
    """Pools of a sparse layer. One that shares another's choice keeps index keys all the same, as engines do."""

    latents: Float[Array, "pool_rows kv_values"]
    keys: Float[Array, "slots index_dim"]


@dataclass(frozen=True)
class Room:
    """Rows of one rank's KV pool, and state slots of one attention group, the sinks included; each slot has a ring for
    the `verify` tokens that a step scores at most."""

    pool_rows: int
    slots: int
    verify: int = 1


def cache_shapes(attention: Attention, layout: Layout, room: Room) -> Any:
    """Shapes of one layer's cache over all ranks."""
    groups = layout.replicas * layout.attn_dp
    rows = groups * layout.attn_tp * room.pool_rows
    match attention:
        case MLA() if attention.indexer is not None:
            # every rank keeps the index keys of its whole group, at their logical slots
            keys = (groups * room.pool_rows * layout.dcp, attention.indexer.head_dim)
            return Sparse((rows, attention.kv_values), keys)  # pyright: ignore[reportArgumentType]
        case MLA():
            return (rows, attention.kv_values)
        case GQA():
            return (rows, gqa.own_kv_heads(attention, layout.attn_tp), 2 * attention.head_dim)
        case KDA():
            return kda.slot_shapes(attention, groups * room.slots, room.verify)


def cache_specs(attention: Attention, axes: Axes) -> Any:
    """How they are cut: every rank has a pool of its own; states are cut by request group and head."""
    match attention:
        case MLA() if attention.indexer is not None:
            return Sparse(axes.spec("pools", None), dsa.index_pool_spec(axes, INDEX_DESIGN))  # pyright: ignore[reportArgumentType]
        case MLA():
            return axes.spec("pools", None)
        case GQA():
            return axes.spec("pools", None, None)
        case KDA():
            return kda.slot_specs(axes)
