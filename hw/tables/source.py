"""Finding the installed tables without importing their package, reading them, and answering questions from them."""

import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hw.errors import MeshwrightError
from hw.tables.forms import FORMS, Columns, Form, Kind
from hw.tables.grid import Inside, interpolated

ENGINES: Final = ("sglang", "trtllm", "vllm")
FOLDER_VARIABLE: Final = "MESHWRIGHT_OP_TABLES"
_PACKAGE, _MODULE = "aiconfigurator-core", "aiconfigurator_core"
_INSTALL: Final = "pip install 'meshwright[tables]' (or pip install --no-deps aiconfigurator-core, and pyarrow)"
# What the folder of a chip's tables adds to its name.
_BOARDS: Final = ("", "_sxm", "_server")
_SECONDS: Final = 1e-3  # the tables' milliseconds
# Sizes that all rows of a table share are met where a question is as near.
_NEAR: Final = 0.05
# A narrower format that takes this much longer than a wider one runs on another, unsuited kernel.
_FALLS_BACK: Final = 2.0
_WORDS: Final = {Inside.ROW: "a row of it", Inside.INTERPOLATED: "interpolated", Inside.EXTRAPOLATED: "extrapolated"}


class TablesError(MeshwrightError):
    """Op tables that are asked for and cannot be had."""


@dataclass(frozen=True)
class Reading:
    """Seconds from a table, and which table said so."""

    seconds: float
    source: str


def installed(chip: str, engine: str = ENGINES[0]) -> "OpTables":
    """The tables of a chip and engine, from the folder that MESHWRIGHT_OP_TABLES names (a copy of `systems/data`) or
    else from the installed package.

    Raises TablesError with one line where there are none, or none of this chip or engine, or nothing reads parquet.
    """
    if engine not in ENGINES:
        raise TablesError(f"op tables of {engine!r}: there are those of {', '.join(ENGINES)}")
    if importlib.util.find_spec("pyarrow") is None:
        raise TablesError(f"op tables: reading parquet needs pyarrow: {_INSTALL}")
    folder, label = _folder()
    names = [chip.replace("-", "_") + board for board in _BOARDS]
    system = next((n for n in names if any((folder / n).glob("*/*/*/*.parquet"))), None)
    if system is None:
        known = sorted({p.parts[-5] for p in folder.glob("*/*/*/*/*.parquet")})
        raise TablesError(f"op tables of {chip!r}: there are those of {', '.join(known) or 'no chip'}")
    return OpTables(folder / system, label, engine)


def _folder() -> tuple[pathlib.Path, str]:
    """The folder of all tables and the name of its source. The module's spec says where it is; it is not run."""
    if (named := os.environ.get(FOLDER_VARIABLE)) is not None:
        if not (folder := pathlib.Path(named)).is_dir():
            raise TablesError(f"{FOLDER_VARIABLE}={named!r}: is no folder; name a copy of the package's systems/data")
        return folder, FOLDER_VARIABLE
    spec = importlib.util.find_spec(_MODULE)
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        if (folder := pathlib.Path(place) / "systems" / "data").is_dir():
            return folder, f"{_PACKAGE} {importlib.metadata.version(_PACKAGE)}"
    raise TablesError(f"op tables: {_PACKAGE} is not installed: {_INSTALL}")


@dataclass(frozen=True)
class OpTables:
    """Tables of one chip. `folder` is the chip's, `label` names the source. A file is read when it is first needed."""

    folder: pathlib.Path
    label: str
    engine: str
    _read: dict[pathlib.Path, Columns] = field(default_factory=dict, repr=False, compare=False)

    def ask(self, kind: Kind, form: str, sizes: Mapping[str, float]) -> Reading | None:
        """How long a problem takes by the newest version of its table that covers it; None where none does.

        `sizes` are those of `FORMS[kind]`, all of them; a format that the tables do not have is not covered.
        """
        table = FORMS[kind]
        if sizes.keys() != table.sizes:
            raise ValueError(f"{kind}: sizes are {', '.join(sorted(table.sizes))}, not {', '.join(sorted(sizes))}")
        if form not in table.format[1] or not _given(table, sizes):
            return None
        return next((found for path in self._files(table) if (found := self._in(path, table, form, sizes))), None)

    def rows(self, kind: Kind) -> Columns | None:
        """All rows of the newest version of a table, by the columns of its form (`latency` in ms); None without one."""
        table = FORMS[kind]
        return next((self._columns(path, table) for path in self._files(table)), None)

    def _files(self, table: Form) -> list[pathlib.Path]:
        """Versions of a table, newest first."""
        engine = table.engine or self.engine
        found = (self.folder / table.folder / engine).glob(f"*/{table.file}")
        return sorted(found, key=lambda path: version(path.parent.name), reverse=True)

    def _in(self, path: pathlib.Path, table: Form, form: str, sizes: Mapping[str, float]) -> Reading | None:
        columns = self._columns(path, table)
        found = _value(columns, table, form, sizes)
        if found is None:
            return None
        seconds, inside = found
        wider = _value(columns, table, table.wider[form], sizes) if form in table.wider else None
        if wider is not None and seconds > _FALLS_BACK * wider[0]:
            return None
        system, folder, engine, made_by = path.parts[-5:-1]
        return Reading(seconds, f"{self.label} op table {folder} {system} {engine} {made_by}, {_WORDS[inside]}")

    def _columns(self, path: pathlib.Path, table: Form) -> Columns:
        """The columns of a file that its form reads, with those derived from them."""
        if path not in self._read:
            named = {*table.axes.values(), *table.exact.values(), table.format[0], *table.needs, "latency"}
            self._read[path] = read_columns(path, named)
        return table.derive(self._read[path])


def version(name: str) -> tuple[tuple[int, str], ...]:
    """A version such as 1.3.0rc20 as something that sorts: numbers by value, a release candidate before the release."""
    parts = re.findall(r"\d+|[a-z]+", name)
    numbered = [(int(p), "") if p.isdigit() else (0 if p == "post" else -1, p) for p in parts]
    return (*numbered, (0, ""))


def read_columns(path: pathlib.Path, names: set[str]) -> Columns:
    """Columns of a parquet file as arrays, those of the names that it has. Nothing but this file is opened."""
    with path.open("rb") as file:
        parquet = importlib.import_module("pyarrow.parquet").ParquetFile(file)
        table = parquet.read(columns=[name for name in parquet.schema_arrow.names if name in names])
    return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}


def _given(table: Form, sizes: Mapping[str, float]) -> bool:
    return all(abs(sizes[name] - value) <= _NEAR * max(abs(value), 1.0) for name, value in table.given.items())


def _value(columns: Columns, table: Form, form: str, sizes: Mapping[str, float]) -> tuple[float, Inside] | None:
    column, words = table.format
    rows = columns[column] == words[form]
    for name, exact in table.exact.items():
        rows = rows & np.isclose(columns[exact].astype(float), sizes[name])
    if not rows.any() or min(sizes[name] for name in table.axes) <= 0:
        return None
    axes = np.stack([columns[c][rows].astype(float) for c in table.axes.values()], axis=1)
    at = np.array([sizes[name] for name in table.axes], dtype=float)
    return interpolated(axes, columns["latency"][rows].astype(float) * _SECONDS, at)
