"""What an indexer does besides its weights."""

from typing import NamedTuple


class IndexForm(NamedTuple):
    """What families that share the indexer differ in: the order of its rotary pairs (the angles are the attention's),
    and the epsilon of its key norm. The rotary values come first in a head, before those without position."""

    interleaved: bool
    eps: float = 1e-6
