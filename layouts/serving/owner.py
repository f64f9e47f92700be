"""Who holds which token: interleaved shards of the KV cache under decode context parallelism and page shards."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layouts.serving.errors import EngineRuleError, require_positive

Ints = NDArray[np.int64]


def owner(slot: ArrayLike, ranks: int, interleave: int = 1) -> Ints:
    """The rank that holds each logical slot: runs of `interleave` slots go round the ranks (1 = token by token)."""
    return _slots(slot, ranks, interleave) // interleave % ranks


def row(slot: ArrayLike, ranks: int, interleave: int = 1) -> Ints:
    """The physical row of each logical slot in its owner's pool."""
    slots = _slots(slot, ranks, interleave)
    return slots // (ranks * interleave) * interleave + slots % interleave


def slot_of(rank: ArrayLike, physical_row: ArrayLike, ranks: int, interleave: int = 1) -> Ints:
    """The logical slot at a physical row of a rank: the inverse of `owner` and `row`."""
    rows = _slots(physical_row, ranks, interleave)
    return rows // interleave * (ranks * interleave) + np.asarray(rank, np.int64) * interleave + rows % interleave


def local_length(length: ArrayLike, rank: ArrayLike, ranks: int, start: ArrayLike = 0, interleave: int = 1) -> Ints:
    """Tokens among logical positions start .. start + length - 1 that `rank` holds. Arguments broadcast."""
    begin = _slots(start, ranks, interleave)
    end = begin + _slots(length, ranks, interleave)
    return _held_before(end, rank, ranks, interleave) - _held_before(begin, rank, ranks, interleave)


def group_capacity(rows_a_rank: int, ranks: int) -> int:
    """Logical slots of a group whose ranks hold `rows_a_rank` rows each."""
    require_positive(rows_a_rank=rows_a_rank, ranks=ranks)
    return rows_a_rank * ranks


def virtual_page(page: int, ranks: int) -> int:
    """Logical slots of one page of the group: one physical page of `page` rows on every rank."""
    return group_capacity(page, ranks)


def kv_copies(attn_tp: int, dcp: int) -> int:
    """Copies of a latent KV token in its attention group: cut over DCP, repeated over the rest of attention TP."""
    require_positive(attn_tp=attn_tp, dcp=dcp)
    if attn_tp % dcp:
        raise EngineRuleError(f"attn_tp {attn_tp} is no multiple of dcp {dcp}: change one of them")
    return attn_tp // dcp


def _held_before(end: Ints, rank: ArrayLike, ranks: int, interleave: int) -> Ints:
    cycle = ranks * interleave
    partial = np.clip(end % cycle - np.asarray(rank, np.int64) * interleave, 0, interleave)
    return end // cycle * interleave + partial


def _slots(values: ArrayLike, ranks: int, interleave: int) -> Ints:
    require_positive(ranks=ranks, interleave=interleave)
    slots = np.asarray(values, np.int64)
    if slots.size and slots.min() < 0:
        raise EngineRuleError(
            f"slot {slots.min()} is negative: an unmapped index must be masked before it is localised"
        )
    return slots
