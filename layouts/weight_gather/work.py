"""Gathering one layer's row-sharded weights from the cards of a host, on a side stream, one layer ahead.

Which weights: those whose module runs TP1 on the card (claim M17). A gather is a local copy of the rank's own part
and one copy-engine transfer from each peer; scales stay whole on every card.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from hw.work import LAUNCHES, CollectiveKind, Family
from layouts.expression import Expr, total
from layouts.op import Op, Stream
from layouts.symbols import ATTENTION_SHARD, DRAFT_SHARD, GATHERS_ATTENTION, GATHERS_MOE, MOE_SHARD, WEIGHT_SHARD
from layouts.tensor import Precision, Tensor

SCOPE: Final = "weight_gather"  # that the program gathers in
_PART_OF: Final = {ATTENTION_SHARD: GATHERS_ATTENTION, MOE_SHARD: GATHERS_MOE, DRAFT_SHARD: GATHERS_ATTENTION}


def gathered_bytes(tensors: Iterable[Tensor], precision: Precision) -> Expr:
    """Bytes of a layer's whole sharded weights, the size that its staging buffer must have."""
    return total(_messages(tensors, precision))


def _messages(tensors: Iterable[Tensor], precision: Precision) -> tuple[Expr, ...]:
    """Bytes of each weight that may be sharded, whole; 0 in a layout that does not shard it."""
    return tuple(t.payload(precision) * _PART_OF[t.shard] for t in tensors if t.shard is not None)


def weight_gather(tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """The copies that bring one layer's weights together; none for a layer without shardable weights."""
    messages = _messages(tensors, precision)
    if not messages:
        return ()
    whole = total(messages)
    sent = total(_PART_OF[t.shard] for t in tensors if t.shard is not None)
    return (
        # the program's exchange writes a rank's own part, too
        Op(
            "weight_local_copy",
            family=Family.COPY,
            bytes=whole * 2 / WEIGHT_SHARD,
            stream=Stream.GATHER,
            program=False,
        ),
        Op(
            "weight_all_gather",  # one op for all weights of a layer, which the program gathers one by one
            collective=CollectiveKind.COPY_GATHER,
            payload=whole,
            size=WEIGHT_SHARD,
            stream=Stream.GATHER,
            program_messages=messages,
            program_shape={LAUNCHES: sent},
        ),
    )
