"""The table of claims."""

import csv
import pathlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from experiments.seed_claims.values import Value, parse_value

TABLE: Final = pathlib.Path(__file__).resolve().parents[1] / "data" / "seed_claims.csv"


@dataclass(frozen=True)
class Claim:
    """One row of the table; `experiments/data/README.md` says what the columns mean."""

    id: str
    seed: str
    quantity: str
    value: str
    unit: str
    tolerance: str
    kind: str
    use: str
    note: str

    @cached_property
    def parsed(self) -> Value:
        """The value, read."""
        return parse_value(self.value)


def read_claims(path: pathlib.Path = TABLE) -> tuple[Claim, ...]:
    """All claims in the order of the table."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(Claim(**row) for row in csv.DictReader(file))
