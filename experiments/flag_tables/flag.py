"""One flag of a parser, from what the parser is told about it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

HUMAN: Final = "human"
JSON: Final = "json"
_PLAIN: Final = {int: "count", float: "number", str: "word", bool: "word"}


def flag(names: Sequence[str], told: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table: spellings, kind, and choices and default where they are plain.

    `told` holds argparse's keywords (`type`, `action`, `nargs`, `choices`, `default`); a type is a built-in one, HUMAN
    for counts with a suffix (1k, 2M), or JSON. `repeated` says that each use adds to a list, `open` that the parser
    takes other words than its choices, or words beside JSON.
    """
    row: dict[str, Any] = {"spellings": list(names), "kind": _kind(told)}
    kind = told.get("type", str)
    items = _PLAIN.get(kind, "count" if kind == HUMAN else "word")
    if row["kind"] == "list":
        row["items"] = items
        if told.get("nargs") == "*":
            row["may_be_empty"] = True
    if kind == HUMAN:
        row["suffixes"] = True
    if told.get("nargs") == "?":
        row["bare"] = True
    if told.get("repeated"):
        row["repeated"] = True
    if told.get("open"):
        row["open"] = True
    if told.get("choices"):
        row["choices"] = [choice for choice in told["choices"] if choice is not None]
    default = told.get("default")
    if isinstance(default, bool | int | float | str):
        row["default"] = default
    return row


def _kind(told: Mapping[str, Any]) -> str:
    if told.get("action") in ("switch", "optional-bool"):
        return told["action"]
    if told.get("type") == JSON:
        return "json"
    if told.get("nargs") in ("+", "*") or isinstance(told.get("nargs"), int) or told.get("repeated"):
        return "list"
    if told.get("type") == HUMAN:
        return "count"
    return _PLAIN.get(told.get("type", str), "word")
