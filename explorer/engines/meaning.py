"""The table of `meaning.toml`: exchanges, formats, and flags whose effect is not modelled."""

import functools
import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any, Final

from explorer.engines.command.launch import EngineName
from explorer.engines.values import Values, flag

_OFF_AT_ONE: Final = ("dwdp_size",)  # degrees: one rank shares with nobody
_NO_OVERRIDES: Final = "{}"


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def exchanges(engine: EngineName, backend: str | None) -> bool:
    """Whether a backend of the engine sends every row to the ranks of its experts."""
    return backend in _table()["exchanges"][engine]


def verified_rows(algorithm: str) -> int:
    """Rows of a request that SGLang verifies in a step where its command does not say."""
    rows = _table()["verified"]
    return rows.get(algorithm, rows["default"])


def format_of(word: str) -> str:
    """An engine's word for a number format in ours."""
    return _table()["formats"].get(word, word)


def unmodelled(values: Values) -> Iterator[str]:
    """Flags that are switched on and change memory or time in a way that nothing here knows."""
    for name, what in _table()["unmodelled"][values.launch.engine].items():
        value = values.launch.values.get(name)
        if value not in (None, False, 0, "", _NO_OVERRIDES) and not (name in _OFF_AT_ONE and value == 1):
            yield f"{flag(name)}: {what}"
