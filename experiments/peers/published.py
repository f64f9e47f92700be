"""Figures that others published, out of `published.toml` and the public tables that it names."""

import pathlib
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from experiments.op_curves.columns import read

FILE: Final = pathlib.Path(__file__).with_name("published.toml")


class Published(NamedTuple):
    """A published time of a kernel at one of our shapes."""

    peer: str
    chip: str
    seconds: float
    source: str


class Figure(NamedTuple):
    """A figure stated at another shape: `quantity` is tflops, tb_per_s or seconds."""

    op: str
    peer: str
    chip: str
    shape: str
    quantity: str
    value: float
    source: str


def figures(op: str) -> list[Figure]:
    """What is stated of an op at shapes that are not ours."""
    return [Figure(**entry) for entry in _file()["figure"] if entry["op"] == op]


def at(op: str, shape: Mapping[str, int]) -> list[Published]:
    """The rows of public tables with exactly these sizes; sizes that a table does not name must not be in `shape`."""
    found = []
    for table in _file()["table"]:
        if table["op"] != op or shape.keys() != {*table["columns"], *table["fixed"]}:
            continue
        seconds = _times(table["file"], tuple(sorted(table["only"].items())), _index(table))
        key = tuple(shape[name] - table["added"].get(name, 0) for name in sorted(table["columns"]))
        if key in seconds and all(shape[name] == value for name, value in table["fixed"].items()):
            found.append(Published(table["peer"], table["chip"], seconds[key] * table["unit"], table["source"]))
    return found


def _index(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of the sizes, in the order of our names, and that of the times."""
    return (*(table["columns"][name] for name in sorted(table["columns"])), table["seconds"])


@cache
def _times(file: str, only: tuple[tuple[str, str], ...], columns: tuple[str, ...]) -> dict[tuple[int, ...], float]:
    kept = (row for row in read(file) if all(row[name] == value for name, value in only))
    return {tuple(int(row[name]) for name in columns[:-1]): float(row[columns[-1]]) for row in kept}


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
