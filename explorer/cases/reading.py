"""Case files: TOML with checked keys; every error is one line that names the file, the key and what would do."""

import datetime
import difflib
import math
import os
import pathlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from explorer.cases.case import READINGS, Case, CaseError, Figure, Kind, Server

LARGEST: Final = 1 << 20
"""Bytes of a case file that are read."""
MOST: Final = 2000
"""Files of a folder that are read."""
_MOST_TEXT: Final = 1 << 16
_KEYS: Final = ("id", "kind", "title", "source", "date", "note", "missing", "given", "server", "servers", "figure")
_SERVER: Final = {f.name: f.type for f in fields(Server)}
_FIGURE: Final = tuple(f.name for f in fields(Figure))
_TEXTS: Final = ("command", "hardware", "model", "draft", "precision")


def read_cases(folder: str) -> tuple[Case, ...]:
    """The cases of a folder's .toml files, in the order of their ids; raises CaseError."""
    path = pathlib.Path(folder)
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".toml"))
    except OSError as error:
        raise CaseError(f"{folder}: {error.strerror}: give a folder of case files (*.toml)") from None
    if not 0 < len(names) <= MOST:
        raise CaseError(f"{folder}: {len(names)} case files (*.toml): give a folder with 1 to {MOST} of them")
    cases = [read_case(str(path / name)) for name in names]
    twice = {case.id for case in cases if [c.id for c in cases].count(case.id) > 1}
    if twice:
        raise CaseError(f"{folder}: id {sorted(twice)[0]!r} is in two files: ids must differ")
    return tuple(sorted(cases, key=lambda case: _order(case.id)))


def chosen(cases: tuple[Case, ...], ids: Iterable[str]) -> tuple[Case, ...]:
    """Those of the ids, or all where none is named; CaseError for an id that is not there."""
    wanted, known = tuple(ids), {case.id for case in cases}
    for name in wanted:
        if name not in known:
            raise CaseError(f"no case {name[:40]!r} in the folder: choose of {', '.join(sorted(known, key=_order))}")
    return tuple(case for case in cases if not wanted or case.id in wanted)


def read_case(path: str) -> Case:
    """One case file; raises CaseError."""
    return case_of(_table(path), path)


def case_of(table: Mapping[str, Any], path: str) -> Case:
    """A case from its table; `path` is named in errors."""
    entry = _Entry(path, table)
    entry.only(_KEYS)
    shared = _given(_Entry(path, entry.table("given"), "given"))
    missing = entry.text("missing", None)
    servers = dict(_servers(entry))
    listed = table.get("figure")
    if not isinstance(listed, list) or not listed:
        raise entry.error("figure", "write at least one [[figure]]")
    figures = tuple(_figure(_Entry(path, item, "figure"), shared, missing, servers) for item in listed)
    kinds = ", ".join(Kind)
    kind = entry.text("kind")
    if kind not in tuple(Kind):
        raise entry.error("kind", f"choose one of {kinds}")
    return Case(
        id=entry.text("id"),
        kind=Kind(kind),
        title=entry.text("title"),
        source=entry.text("source"),
        date=_date(entry),
        note=entry.text("note", ""),
        servers=servers,
        figures=figures,
    )


class _Entry:
    """A table of a file: its values by kind, errors that say where."""

    def __init__(self, path: str, table: object, where: str = ""):
        self.path, self.where = path, f"{where}." if where else ""
        if not isinstance(table, Mapping):
            raise CaseError(f"{path}: {where} must be a table")
        self.values: Mapping[str, Any] = table

    def error(self, key: str, remedy: str) -> CaseError:
        shown = repr(self.values[key])[:40] if key in self.values else "missing"
        return CaseError(f"{self.path}: {self.where}{key} is {shown}: {remedy}")

    def only(self, known: Iterable[str]) -> None:
        names = tuple(known)
        for key in self.values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
                raise CaseError(f"{self.path}: unknown key {self.where}{key[:40]}: nearest is {near!r}")

    def text(self, key: str, *default: str | None) -> Any:
        """Text that is not empty; the default where it is left out, an error where there is none."""
        if key not in self.values and default:
            return default[0]
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip() or len(value) > _MOST_TEXT:
            raise self.error(key, "give text")
        return value.strip()

    def number(self, key: str) -> float:
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, "give a number")
        if abs(value) > 1e18:
            raise self.error(key, "give a number below 1e18")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "write it as a table")
        return value


def _table(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}: give a case file") from None
    if len(data) > LARGEST:
        raise CaseError(f"{path}: longer than {LARGEST >> 20} MiB: a case is a short file")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaseError(f"{path}: no TOML ({first[:120]}): see docs/cases.md for the form") from None


def _servers(entry: _Entry) -> Iterable[tuple[str, Server]]:
    """`[server]`, or several `[servers.NAME]`; none is fine where figures need rules alone."""
    named = entry.table("servers")
    if "server" in entry.values:
        if named:
            raise entry.error("servers", "write [server] or [servers.NAME], not both")
        named = {"server": entry.values["server"]}
    for name, values in named.items():
        yield name, _server(_Entry(entry.path, values, f"servers.{name}" if len(named) > 1 else "server"))


def _server(entry: _Entry) -> Server:
    entry.only(_SERVER)
    entry.text("command")
    values: dict[str, Any] = {}
    for key in entry.values:
        values[key] = entry.text(key) if key in _TEXTS else entry.number(key)
        whole = key not in (*_TEXTS, "memory_gib", "accept_length")
        if key not in _TEXTS and (values[key] <= 0 or (whole and not isinstance(values[key], int))):
            raise entry.error(key, f"give a positive {'whole ' if whole else ''}number")
    return Server(**values)


def _given(entry: _Entry) -> Mapping[str, float]:
    entry.only(READINGS)
    return {key: entry.number(key) for key in entry.values}


def _figure(entry: _Entry, shared: Mapping[str, float], missing: str | None, servers: Mapping[str, Server]) -> Figure:
    entry.only(_FIGURE)
    reported = entry.values.get("reported")
    if not isinstance(reported, bool | int | float | str):
        raise entry.error("reported", "give a number, a word, or true or false")
    if not isinstance(reported, bool | str):
        entry.number("reported")
    printed = entry.number("printed_to") if "printed_to" in entry.values else 0.0
    among = entry.values.get("among", [])
    if not isinstance(among, list):
        raise entry.error("among", "give a list of servers")
    figure = Figure(
        quantity=entry.text("quantity"),
        reported=reported,
        printed_to=printed,
        given={**shared, **_given(_Entry(entry.path, entry.table("given"), "figure.given"))},
        of=entry.text("of", None),
        over=entry.text("over", None),
        among=tuple(str(name) for name in among),
        by=entry.text("by", None),
        missing=entry.text("missing", missing),
        note=entry.text("note", None),
    )
    for key, name in (("of", figure.of), ("over", figure.over), *(("among", name) for name in figure.among)):
        if name is not None and name not in servers:
            raise entry.error(key, f"name a server of the file: {', '.join(servers) or 'there is none'}")
    if figure.of is None and len(servers) > 1 and not figure.among:
        raise entry.error("of", f"say which server: {', '.join(servers)}")
    return figure


def _date(entry: _Entry) -> str:
    value = entry.values.get("date")
    if value is None:
        return ""
    if not isinstance(value, datetime.date):
        raise entry.error("date", "give a date such as 2025-05-09, without quotes")
    return value.isoformat()[:10]


def _order(name: str) -> tuple[str, int, str]:
    """A2 before A11."""
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return head, int(tail) if tail and len(tail) < 10 else 0, name
