"""Reading a launch's values with the types that a setting has; writing them back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from explorer.engines.command.launch import CommandError, Launch

LARGEST: Final = 1 << 40
_SUFFIXES: Final = {"k": 1000, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Values:
    """A launch's values by kind; errors name the flag, what is wrong with it, and what would do."""

    launch: Launch

    def __contains__(self, name: str) -> bool:
        return self.launch.values.get(name) is not None

    def count(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """A whole number; words such as 32k, 1K (1024) or 2.5m are numbers too. None where it is left out or `auto`."""
        value = self.launch.values.get(name)
        if value is None or value == "auto":
            return default
        number = _whole(value)
        if number is None or not least <= number <= LARGEST:
            raise self.error(name, f"give a whole number from {least}")
        return number

    def degree(self, name: str) -> int:
        """A count of ranks: 1 where it is left out."""
        found = self.count(name, 1, 1)
        assert found is not None
        return found

    def share(self, name: str) -> float | None:
        """A number from 0 to 1."""
        value = self.number(name)
        if value is not None and not 0.0 < value <= 1.0:
            raise self.error(name, "give a share, more than 0 and at most 1")
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.launch.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise self.error(name, "give a number")
        return float(value)

    def word(self, name: str) -> str | None:
        """A word, in lower case."""
        value = self.launch.values.get(name)
        return None if value is None else str(value).lower()

    def switch(self, name: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        value = self.launch.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "it takes no value")
        return value

    def counts(self, name: str) -> tuple[int, ...] | None:
        """A list of positive whole numbers, smallest first."""
        value = self.launch.values.get(name)
        if value is None:
            return None
        entries = value if isinstance(value, tuple) else (value,)
        numbers = [_whole(entry) for entry in entries]
        if not numbers or any(n is None or not 1 <= n <= LARGEST for n in numbers):
            raise self.error(name, "give whole numbers from 1")
        return tuple(sorted({n for n in numbers if n is not None}))

    def table(self, name: str) -> Mapping[str, Any]:
        """What a flag that takes JSON holds; empty where it is left out."""
        value = self.launch.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(name, "give a JSON object")
        return value

    def error(self, name: str, remedy: str) -> CommandError:
        """The one line about a value that cannot be."""
        return CommandError(f"{flag(name)} {str(self.launch.values.get(name))[:40]!r}: {remedy}")


def flag(name: str) -> str:
    """`tp_size` -> `--tp-size`."""
    return f"--{name.replace('_', '-')}"


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value) if value == value and abs(value) < 2**62 and value == int(value) else None
    text = str(value).strip()
    scale = _BINARY.get(text[-1:]) or _SUFFIXES.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        number = float(digits) * scale if len(digits) <= 24 else None
    except ValueError:
        return None
    return int(number) if number is not None and abs(number) < 2**62 and number == int(number) else None
