"""Reading a config.json that may be anything: every value is checked, every error names file and key."""

import json
import pathlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from layouts.models.errors import ModelError

LARGEST_SIZE = 10**7  # no dimension of a real model is larger; a typing error or an attack is
LARGEST_CONTEXT = 10**9
LARGEST_DEPTH = 10_000
LARGEST_FILE = 16 << 20  # bytes


@dataclass(frozen=True)
class Config:
    """The values of one JSON object and the name of the file they come from. `null` counts as missing."""

    source: str
    values: Mapping[str, object]

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """An integer in [least, most]."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # some writers print 4096.0
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(f"{key} = {_shown(value)} must be an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise self.error(f"{key} = {_shown(value)} must be a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} = {_shown(value)} must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} = {_shown(value)} must be a string")
        return value

    def sizes(self, key: str, least: int, most: int) -> tuple[int, ...]:
        """A list of integers in [least, most]."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list")
        if any(isinstance(entry, bool) or not isinstance(entry, int) or not least <= entry <= most for entry in value):
            raise self.error(f"{key} must hold integers from {least} to {most} only")
        return tuple(value)

    def words(self, key: str, length: int, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """A list of `length` strings out of `allowed`."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != length:
            raise self.error(f"{key} must be a list of {length} entries, one for each layer")
        for entry in value:
            if entry not in allowed:
                raise self.error(f"{key} holds {_shown(entry)}; supported: {', '.join(allowed)}")
        return tuple(value)

    def section(self, key: str) -> "Config":
        """An object within this one; its errors name file and key."""
        value = self._value(key, None)
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be an object")
        return Config(f"{self.source}: {key}", value)

    def multiple(self, key: str, of: str) -> None:
        """Raise unless the value of `key` is a multiple of that of `of`."""
        if self.size(key) % self.size(of):
            raise self.error(f"{key} = {self.size(key)} must be a multiple of {of} = {self.size(of)}")

    def at_most(self, key: str, other: str) -> None:
        """Raise unless the value of `key` is at most that of `other`."""
        if self.size(key) > self.size(other):
            raise self.error(f"{key} = {self.size(key)} must not exceed {other} = {self.size(other)}")

    def error(self, what: str) -> ModelError:
        """An error on a value of this file, to be raised."""
        return ModelError(f"{self.source}: {what}")

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"key {key!r} is missing; add it, or use a config.json as published with the model")
        return value


def read_json(path: pathlib.Path) -> Config:
    """The object in a JSON file; raises ModelError for anything else. A device is not opened, nor is a file that no
    config is as large as."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_FILE:
            what = "is no file" if not stat.S_ISREG(about.st_mode) else f"is larger than {LARGEST_FILE >> 20} MiB"
            raise ModelError(f"{path}: {what}; give the path of a config.json")
        values = json.loads(path.read_text(encoding="utf-8"))
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); give the path of a config.json") from None
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, absurdly long integers
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path}: is no complete JSON ({reason}); download the config.json again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds a JSON {type(values).__name__}; a model config is an object with keys")
    return Config(str(path), values)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
