"""From the names of public tables to ours, by a data file."""

import functools
import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, Final

_FILE: Final = pathlib.Path(__file__).with_name("names.toml")


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def model(name: str) -> str:
    """The preset that a public name stands for, with or without its owner; any other name, and a path, as it is."""
    known = _tables()["models"]
    short = name.strip().lower()
    owner, _, rest = short.rpartition("/")
    if short in known:
        return known[short]
    is_path = owner.startswith((".", "~")) or "/" in owner or not owner or os.path.exists(name)
    return name if is_path else known.get(rest, name)


def hardware(name: str) -> str:
    """The chip that a system of a public table is made of."""
    return _tables()["hardware"].get(name.strip().lower(), name)


def shortest(source: str) -> float:
    """The least length that the benchmark of a source draws, over the longest; 1 where all are alike or nothing is
    known."""
    drawn = (share for word, share in _tables()["lengths"].items() if word in source.lower())
    return float(next(drawn, 1.0))


def engine(*texts: str) -> str:
    """The engine that the first of some texts names; `other` if none does."""
    for text in texts:
        for word, known in _tables()["engines"].items():
            if word in text.lower():
                return known
    return "other"
