"""The lines that engines print, as `patterns.toml` describes them, and the figures read from one."""

import functools
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from explorer.engines.logs.entries import Engine, Event, Reading, Value

LONGEST_LINE: Final = 1 << 16  # bytes; of longer ones the rest is dropped
_LONGEST_WORD: Final = 400
_NUMBER: Final = r"(-?\d[\d,]{0,30}(?:\.\d{1,12})?)"
_WORDS: Final = ("text", "arguments")


@dataclass(frozen=True)
class Figure:
    """What to look for, and in which unit it is printed; `decimals`: to which it was rounded at least."""

    find: re.Pattern[str]
    unit: str
    decimals: int

    def read(self, text: str, units: Mapping[str, float]) -> Value | None:
        """The figure in SI units with its interval, a whole number, or words; None if the line has none."""
        found = self.find.search(text)
        if found is None:
            return None
        if self.unit in _WORDS:
            return found[1].strip()[: LONGEST_LINE if self.unit == "arguments" else _LONGEST_WORD]
        number = found[1].replace(",", "")
        if self.unit == "count":
            return int(number) if "." not in number else None
        if self.unit == "exact":
            return Reading(float(number))
        unit = units[found[2] if self.unit == "printed" else self.unit]
        decimals = max(self.decimals, len(number.partition(".")[2]))
        return Reading(float(number) * unit, 0.5 * 10**-decimals * unit)


@dataclass(frozen=True)
class Pattern:
    """A line of one event in one format; `engine` None where several print it (torch's errors)."""

    event: Event
    engine: Engine | None
    markers: tuple[str, ...]
    needs: tuple[str, ...]
    kind: str | None
    figures: Mapping[str, Figure]
    read_in: tuple[str, ...]

    def read(self, text: str, units: Mapping[str, float]) -> dict[str, Value] | None:
        """The figures of a line, None unless it holds a marker and everything that is needed."""
        if not any(marker in text for marker in self.markers):
            return None
        found = {name: value for name, f in self.figures.items() if (value := f.read(text, units)) is not None}
        if any(name not in found for name in self.needs):
            return None
        return found if self.kind is None else {"kind": self.kind, **found}


@dataclass(frozen=True)
class Read:
    """What a line says: an event and its figures, None if it names the event but is cut short or of another format."""

    event: Event
    engine: Engine | None
    values: dict[str, Value] | None


class Patterns:
    """All patterns, by event in the order of the file."""

    def __init__(self, patterns: tuple[Pattern, ...], units: Mapping[str, float]):
        self._units = units
        self.by_event = {event: tuple(p for p in patterns if p.event is event) for event in Event}
        self.markers = tuple(dict.fromkeys(marker for p in patterns for marker in p.markers))
        self._events = {m: tuple({p.event: None for p in patterns if m in p.markers}) for m in self.markers}

    def read(self, text: str) -> Iterator[Read]:
        """Every event that a line tells of, each once."""
        named = dict.fromkeys(event for m in self.markers if m in text for event in self._events[m])
        for event in named:
            yield self._of(event, text)

    def _of(self, event: Event, text: str) -> Read:
        for pattern in self.by_event[event]:
            values = pattern.read(text, self._units)
            if values is not None:
                return Read(event, pattern.engine, values)
        return Read(event, None, None)


@functools.cache
def all_patterns() -> Patterns:
    """Those of `patterns.toml`; read once."""
    document = tomllib.loads(pathlib.Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8"))
    return Patterns(tuple(_pattern(table) for table in document["pattern"]), document["units"])


def _pattern(table: dict[str, Any]) -> Pattern:
    marker, engine = table["marker"], table["engine"]
    return Pattern(
        event=Event(table["event"]),
        engine=None if engine == "any" else Engine(engine),
        markers=(marker,) if isinstance(marker, str) else tuple(marker),
        needs=tuple(table.get("needs", ())),
        kind=table.get("kind"),
        figures={name: _figure(*entry) for name, entry in table.get("figures", {}).items()},
        read_in=tuple(table["read_in"]),
    )


def _figure(find: str, unit: str, decimals: int = 0) -> Figure:
    return Figure(re.compile(find.replace("<n>", _NUMBER)), unit, decimals)
