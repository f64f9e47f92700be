"""From a file of public runs to `Run`s: what cannot be read is refused, row by row, with its reason."""

import csv
import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from explorer.fidelity import points, silicon
from explorer.fidelity.cells import Cells, RowError
from explorer.fidelity.runs import Run
from hw.errors import MeshwrightError

_GZIP: Final = b"\x1f\x8b"
_MOST_BYTES: Final = 2**30


class DataFileError(MeshwrightError):
    """A file of runs that cannot be read at all."""


@dataclass(frozen=True)
class Refusal:
    """What is not scored: a row that could not be read, or a run that could not be predicted."""

    id: str
    quantities: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Loaded:
    """Rows of one file or several, in their order, and the columns that nothing reads."""

    runs: tuple[Run, ...] = ()
    refused: tuple[Refusal, ...] = ()
    unread: tuple[str, ...] = ()

    def __add__(self, other: "Loaded") -> "Loaded":
        return Loaded(self.runs + other.runs, self.refused + other.refused, self.unread + other.unread)


@dataclass(frozen=True)
class _Format:
    """One of the two tables: its columns, how a row is read, what a row is about even where it cannot be read."""

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Cells, str, str], Run]
    quantities: Callable[[Cells], tuple[str, ...]]


_FORMATS: Final = (
    _Format(silicon.NEEDED, silicon.OPTIONAL, silicon.read_row, lambda _: silicon.QUANTITIES),
    _Format(points.NEEDED, points.OPTIONAL, points.read_row, points.quantities),
)


def load_runs(path: str | os.PathLike[str]) -> Loaded:
    """The runs of a CSV file, or of one packed with gzip, in either format of docs/fidelity.md.

    Raises DataFileError, in one line, for a file that is missing, empty, no text, or has other columns.
    """
    path = pathlib.Path(os.path.expanduser(path))
    table = _table(path)
    header, rows = [cell.strip() for cell in table[0]], table[1:]
    form = _format(path, header)
    source = path.name.removesuffix(".gz").removesuffix(".csv")
    runs: list[Run] = []
    refused: list[Refusal] = []
    for number, row in enumerate(rows, 2):
        found = _read(form, header, row, f"line {number}", source)
        runs.append(found) if isinstance(found, Run) else refused.append(found)
    known = {*form.needed, *form.optional}
    return Loaded(tuple(runs), tuple(refused), tuple(c for c in header if c not in known))


def _read(form: _Format, header: Sequence[str], row: Sequence[str], place: str, source: str) -> Run | Refusal:
    cells = Cells(dict(zip(header, row, strict=False)))
    run_id = cells.text("id") or place
    try:
        if len(row) != len(header):
            raise RowError(f"{len(row)} cells under {len(header)} columns")
        return form.read(cells, run_id, source)
    except RowError as error:
        return Refusal(run_id, form.quantities(cells), str(error))


def _table(path: pathlib.Path) -> list[list[str]]:
    """The cells of a file, header first, blank lines left out; at least a header and a row."""
    try:
        lines = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
        rows = [row for row in lines if any(map(str.strip, row))]
    except csv.Error as error:
        raise DataFileError(f"{path}: no CSV table ({error}); give a file with a header line") from None
    if len(rows) < 2:
        raise DataFileError(f"{path}: has no rows; give a header line and at least one run")
    return rows


def _text(path: pathlib.Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
        if data.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(_MOST_BYTES)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataFileError(f"{path}: is not text; give a CSV file in UTF-8") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataFileError(f"{path}: cannot be read ({reason}); give a CSV file") from None
    if "\0" in text:
        raise DataFileError(f"{path}: is not text; give a CSV file in UTF-8")
    return text


def _format(path: pathlib.Path, header: Sequence[str]) -> _Format:
    """The format whose columns are all there."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataFileError(f"{path}: column {twice[:40]!r} is there twice; leave one out")
    for form in _FORMATS:
        if set(form.needed) <= set(header):
            return form
    nearest = max(_FORMATS, key=lambda form: len(set(form.needed) & set(header)))
    missing = [name for name in nearest.needed if name not in header]
    expected = " or ".join(", ".join(form.needed) for form in _FORMATS)
    raise DataFileError(f"{path}: no column {', '.join(missing)}; expected are the columns {expected}")
