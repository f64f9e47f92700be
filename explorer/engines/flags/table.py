"""The flags that an engine's parser takes, from the table of its newest version."""

import bisect
import dataclasses
import difflib
import functools
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_FOLDER: Final = pathlib.Path(__file__).parent


@dataclass(frozen=True)
class Flag:
    """A flag by its canonical name: the spelling to write, with underscores.

    `kind` is `switch`, `optional-bool` (a switch that has a negation), `count`, `number`, `word`, `list` (of `items`)
    or `json`. `choices` are empty where the parser takes anything, or asks the running program; where the flag is
    `open` it takes other words too. `default` is None where it is not plain. A flag with `suffixes` takes 4k, one that
    is `bare` needs no value, one that is `repeated` adds each value to the last. `field` is its name in the
    engine's own records where that differs, `fallback` what the engine takes where neither it nor a rule gives a value.
    """

    name: str
    spellings: tuple[str, ...]
    kind: str
    items: str = "word"
    choices: tuple[int | str, ...] = ()
    open: bool = False
    default: bool | int | float | str | None = None
    suffixes: bool = False
    bare: bool = False
    repeated: bool = False
    may_be_empty: bool = False
    field: str | None = None
    fallback: bool | int | float | str | None = None


@dataclass(frozen=True)
class Renamed:
    """A flag of older versions, as renamed.toml describes it. `write` is empty where nothing takes its place."""

    spelling: str
    kind: str
    write: str
    source: str
    to: str | None = None
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    moves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The flags of one engine by each of their spellings."""

    engine: str
    version: str
    flags: Mapping[str, Flag]
    spellings: Mapping[str, tuple[Flag, bool]]
    renamed: Mapping[str, Renamed]

    def nearest(self, spelling: str) -> str | None:
        """The known long spelling most like one that is unknown; None if none is near."""
        near = difflib.get_close_matches(spelling.replace("_", "-")[:80], self._long, n=1, cutoff=0.75)
        return near[0] if near else None

    def beginning(self, spelling: str) -> tuple[str, ...]:
        """Long spellings that begin with one, as argparse looks them up."""
        first = bisect.bisect_left(self._sorted, spelling)
        last = bisect.bisect_right(self._sorted, f"{spelling}\U0010ffff", first)
        return tuple(sorted(self._sorted[first:last], key=self._long.index))

    def recorded(self, name: str) -> Flag | None:
        """The flag that the engine's own records call by a name; None for what no flag sets."""
        return self.flags.get(name) or self._fields.get(name)

    @functools.cached_property
    def _fields(self) -> Mapping[str, Flag]:
        return {flag.field: flag for flag in self.flags.values() if flag.field is not None}

    @functools.cached_property
    def _sorted(self) -> tuple[str, ...]:
        return tuple(sorted(self._long))

    @functools.cached_property
    def _long(self) -> tuple[str, ...]:
        return tuple(known for known in self.spellings if known.startswith("--"))


@functools.cache
def table(engine: str) -> Table:
    """The table of an engine: `sglang` or `vllm`."""
    read = _read(engine)
    flags = {name: _flag(name, row) for name, row in read["flags"].items()}
    spellings: dict[str, tuple[Flag, bool]] = {}
    for flag in flags.values():
        for spelling in flag.spellings:
            spellings[spelling] = (flag, True)
    for flag in flags.values():
        if flag.kind == "optional-bool":
            for spelling in _negations(flag, engine):
                spellings.setdefault(spelling, (flag, False))
    renamed = {row["spelling"]: _renamed(row) for row in _read("renamed").get(engine, ())}
    return Table(engine, read["version"], flags, spellings, renamed)


@functools.cache
def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _flag(name: str, row: Mapping[str, Any]) -> Flag:
    made: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Flag(name=name, **made)


def _renamed(row: Mapping[str, Any]) -> Renamed:
    return Renamed(**row)


def _negations(flag: Flag, engine: str) -> list[str]:
    """Spellings that say no: argparse's `--no-x`, and in vLLM the other of `--enable-x` and `--disable-x`.

    Source: vLLM 0.33.0, utils/argparse_utils.py, EnableDisableAction.
    """
    made = [f"--no-{spelling[2:]}" for spelling in flag.spellings if spelling.startswith("--")]
    if engine == "vllm":
        for one, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
            made += [other + spelling.removeprefix(one) for spelling in flag.spellings if spelling.startswith(one)]
    return made
