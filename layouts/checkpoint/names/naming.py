"""How a family names the tensors of its checkpoints, beyond what all families share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layouts.checkpoint.names.claims import Claims
from layouts.models.layer import Ffn


@dataclass(frozen=True)
class Naming:
    """`ffn` makes the weights of a layer's feed-forward part, given the layer's name with a dot behind it; `prefix`
    stands before `model.` and `lm_head.`; `others` are tensors beside the decoder."""

    ffn: Callable[[Claims, str, Ffn], Any]
    prefix: str = ""
    others: tuple[re.Pattern[str], ...] = ()
