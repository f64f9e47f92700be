"""Rows of a public table as the time model sees them: what a kernel or an exchange was asked, and how long it took."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Group:
    """Rows that share one curve: one chip, one kernel, one format.

    `features` are columns of the same length as `seconds`; `shape` numbers the distinct problems, so that a fold never
    holds a repetition of what was fitted. `flagged`: rows left out, by reason. `fixed`: parameters of the curve that
    are known beforehand. `used`: a machine is priced by this curve, and not by another table of the same exchange.
    """

    name: str
    chip: str
    family: str
    rate: str
    features: Mapping[str, Float[np.ndarray, " rows"]]
    seconds: Float[np.ndarray, " rows"]
    shape: np.ndarray
    source: str
    flagged: Mapping[str, int]
    fixed: Mapping[str, float] = field(default_factory=dict)
    used: bool = True

    def __post_init__(self) -> None:
        wrong = [n for n, column in self.features.items() if len(column) != len(self.seconds)]
        if wrong or len(self.shape) != len(self.seconds):
            raise ValueError(f"{self.name}: columns {wrong or ['shape']} do not have one entry a row")
