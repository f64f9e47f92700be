"""Rows on disk as soon as they are measured: one line each, behind a first line that says of what machine they are.

A run that ends early, by its budget or by a signal, is gone on with from there: at most the row at hand is lost.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Final

from explorer.measuring.errors import MeasuringError

SCHEMA: Final = "measuring/1"
FAILED: Final = "error"  # of a row without seconds: why
TRIED: Final = "tried"  # of a row of an op with several forms: why those before the one that was timed do not run
BANDWIDTH: Final = "copy bandwidth"  # the row of copies that are no ops of a step: bytes a second, by form
Row = Mapping[str, Any]


class Journal:
    """The rows that there are, by name, and a file that takes more of them.

    `surroundings`: what the rows depend on beside their names (machine, versions). A journal of others is begun anew,
    and theirs is kept as `set_aside`.
    """

    def __init__(self, path: pathlib.Path, surroundings: Mapping[str, Any]):
        self.path = path
        head = {"schema": SCHEMA, **surroundings}
        lines = _lines(path)
        self.rows: dict[str, Row] = {}
        self.set_aside: pathlib.Path | None = None
        if lines and lines[0] == head:
            self.rows = {row["name"]: row for row in lines[1:] if whole(row)}
        elif len(lines) > 1:
            self.set_aside = path.replace(path.with_name(f"{path.name}.other"))
        self.resumed = len(self.rows)
        # written anew, so that a line that was cut short is gone, and whole or not at all
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text("".join(map(_line, (head, *self.rows.values()))), encoding="utf-8")
        draft.replace(path)

    def add(self, row: Row) -> None:
        """Keep a row; it is on disk when this returns."""
        self.rows[row["name"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())

    def done(self) -> None:
        """Nothing is left to go on with."""
        self.path.unlink(missing_ok=True)


def whole(row: Row) -> bool:
    """Whether a row has a name and what was measured. What failed has not and is tried again: another program may have
    held the memory."""
    if not isinstance(row.get("name"), str):
        return False
    found = row.get("bytes_per_s") if row["name"] == BANDWIDTH else {"seconds": row.get("seconds")}
    return isinstance(found, dict) and all(isinstance(x, int | float) and 0 < x < math.inf for x in found.values())


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The objects of a journal's lines, up to the first that is none; empty where there is no file. MeasuringError for
    a file that is something else: it is not overwritten."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MeasuringError(f"{path.name} cannot be read ({error.strerror}): give another --out") from None
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            entry = json.loads(line, parse_constant=_refused)
        except (ValueError, RecursionError):
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
    if text.strip() and (not found or found[0].get("schema") != SCHEMA):
        raise MeasuringError(
            f"{path.name} is there and holds no rows of a measurement: remove it, or give another --out"
        )
    return found
