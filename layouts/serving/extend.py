"""Prefill under decode context parallelism: the prefix comes to every card, which then computes all of its attention.

A decode step leaves the KV where it is and sends queries; an extend step sends the KV. Source: serving rules, DCP.
"""

import numpy as np

from layouts.serving.errors import require_not_negative, require_positive
from layouts.serving.owner import Ints, local_length, owner, row


def gathered_order(prefix: int, ranks: int) -> Ints:
    """Where each position of the prefix stands in the all-gathered buffer, whose ranks' parts follow each other.

    Every rank's part is padded to the longest, as an all-gather asks for equal parts; `buffer[gathered_order(...)]` is
    the prefix in order.
    """
    require_not_negative(prefix=prefix)
    require_positive(ranks=ranks)
    positions = np.arange(prefix)
    return owner(positions, ranks) * -(-prefix // ranks) + row(positions, ranks)


def received_tokens(prefix: int, rank: int, ranks: int) -> int:
    """KV tokens that a card receives in each layer of an extend step: those of the prefix that it does not hold."""
    return prefix - int(local_length(prefix, rank, ranks))


def attended_tokens(prefix: int, ranks: int) -> tuple[int, ...]:
    """Prefix tokens that each card attends to in an extend step: all of them, on every card alike."""
    return tuple(int(local_length(prefix, rank, ranks)) + received_tokens(prefix, rank, ranks) for rank in range(ranks))
