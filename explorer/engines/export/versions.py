"""The words of a command in the version of an engine that is to run it."""

import functools
import json
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.engines.command.launch import EngineName, Value
from explorer.engines.export.errors import ExportError
from explorer.engines.export.intent import TITLES
from explorer.engines.flags import table


@dataclass(frozen=True)
class Version:
    """A version of an engine, by what tells its flags from the newest ones."""

    engine: EngineName
    number: str
    lacks: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{TITLES[self.engine]} {self.number}"

    def has(self, name: str) -> bool:
        """Whether it takes a flag, given by its newest name."""
        return name not in self.lacks


def known_versions(engine: EngineName) -> tuple[str, ...]:
    """Versions that can be written for, newest first."""
    return (table(engine).version, *reversed(list(_older(engine))))


def version_of(engine: EngineName, number: str | None) -> Version:
    """The version of a number, the newest for None; ExportError for one whose flags are not known."""
    newest = table(engine).version
    if number is None or number == newest:
        return Version(engine, newest)
    row = _older(engine).get(number.removeprefix("v"))
    if row is None:
        known = ", ".join(known_versions(engine))
        raise ExportError(f"{TITLES[engine]} {number[:40]!r} is no version whose flags are known: give one of {known}")
    words = {name: tuple(values) for name, values in row.get("words", {}).items()}
    return Version(engine, number.removeprefix("v"), frozenset(row["lacks"]), row.get("renamed", {}), words)


def words_of(flags: Mapping[str, Value], version: Version) -> list[tuple[str, ...]]:
    """Each flag with its value, as words, in the spelling of a version; ExportError for what it does not have."""
    return [_words(name, value, version) for name, value in flags.items()]


def _words(name: str, value: Value, version: Version) -> tuple[str, ...]:
    if not version.has(name):
        raise ExportError(
            f"{version.title} has no {_spelling(version.engine, name)}, which this layout or load needs: give a newer "
            f"--engine-version ({table(version.engine).version}), or another layout"
        )
    allowed = version.words.get(name)
    if allowed is not None and value not in allowed:
        raise ExportError(
            f"{version.title} knows no {_spelling(version.engine, name)} {value}: it takes {', '.join(allowed)}"
        )
    spelling = version.renamed.get(name, _spelling(version.engine, name)).split()
    if value is True:
        return tuple(spelling)
    if value is False:
        return (f"--no-{spelling[0].removeprefix('--')}",)
    if isinstance(value, tuple):
        return (*spelling, *map(str, value))
    return (*spelling, json.dumps(value) if isinstance(value, Mapping) else str(value))


def _spelling(engine: EngineName, name: str) -> str:
    return table(engine).flags[name].spellings[0]


def _older(engine: EngineName) -> Mapping[str, Any]:
    return _read()[engine]


@functools.cache
def _read() -> Mapping[str, Any]:
    return tomllib.loads(pathlib.Path(__file__).with_name("versions.toml").read_text(encoding="utf-8"))
