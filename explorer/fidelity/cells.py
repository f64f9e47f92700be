"""Cells of one row of a public table: blank is unknown, what cannot be is an error on the row alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_BLANK: Final = frozenset({"", "none", "nan", "null", "n/a"})
_MOST: Final = 1e12  # no count of a run comes near; what is larger is junk


class RowError(ValueError):
    """A row that cannot be read; one line: the column, what it holds, what it should."""


@dataclass(frozen=True)
class Cells:
    """A row by column. A column that the file does not have is blank."""

    row: Mapping[str, str]

    def text(self, column: str) -> str | None:
        """The cell without blanks around it; None if it says nothing."""
        cell = self.row.get(column, "").strip()
        return None if cell.lower() in _BLANK else cell

    def needed(self, column: str) -> str:
        """The cell; raises RowError if it is blank."""
        cell = self.text(column)
        if cell is None:
            raise RowError(f"{column} is blank")
        return cell

    def number(self, column: str) -> float | None:
        """A number above 0; blank and 0 are unknown. Raises RowError for anything else."""
        cell = self.text(column)
        if cell is None:
            return None
        try:
            value = float(cell)
        except ValueError:
            raise RowError(f"{column} is {cell[:40]!r}, not a number") from None
        if not math.isfinite(value) or value < 0:
            raise RowError(f"{column} is {cell[:40]!r}, not a number from 0 on")
        return value or None

    def count(self, column: str) -> int | None:
        """A whole number above 0 (`8`, `8.0`); blank and 0 are unknown. Raises RowError for anything else."""
        value = self.number(column)
        if value is not None and (value != int(value) or value > _MOST):
            raise RowError(f"{column} is {self.text(column)!r}, not a count")
        return None if value is None else int(value)
