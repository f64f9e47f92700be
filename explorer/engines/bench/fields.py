"""Fields of a client's results, checked one by one: what is no number is named, with what to do."""

import math
from collections.abc import Mapping
from typing import Any, Final

from explorer.engines.bench.run import Times
from explorer.engines.bench.values import BenchError

MOST: Final = 1e15  # of any count or rate
_SHOWN: Final = 40
Fields = Mapping[str, Any]


class Unusable(BenchError):
    """A run that says too little or what cannot be; the message names the field."""


def needed(fields: Fields, name: str) -> float:
    """A number above 0 that a run is no run without."""
    found = optional(fields, name)
    if found is None:
        raise Unusable(f"{name} = {shown(fields.get(name))}: must be a number above 0, as the client writes it")
    return found


def optional(fields: Fields, name: str) -> float | None:
    """A number above 0, or None where the client had none to write (null, or 0 of what did not happen)."""
    value = fields.get(name)
    if value is None or (not isinstance(value, bool) and value == 0):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST:
        raise Unusable(f"{name} = {shown(value)}: must be a number above 0, as the client writes it")
    return float(value)


def count(fields: Fields, name: str) -> int:
    """A whole number above 0."""
    found = needed(fields, name)
    if found != int(found):
        raise Unusable(f"{name} = {shown(fields[name])}: must be a whole number above 0")
    return int(found)


def text(fields: Fields, name: str) -> str | None:
    """A short text, or None."""
    value = fields.get(name)
    return value[:256] if isinstance(value, str) and value else None


def times(fields: Fields, name: str) -> Times:
    """Mean, median and 99th percentile of a latency that is written in milliseconds."""
    found = (optional(fields, f"{which}_{name}_ms") for which in ("mean", "median", "p99"))
    return Times(*(None if value is None else value / 1e3 for value in found))


def request_rate(fields: Fields) -> float | None:
    """Requests a second; inf where none waits for its time (`inf`, as number or text, or nothing), None for a trace's
    own times."""
    value = fields.get("request_rate", math.inf)
    if value == "trace":
        return None
    if value in ("inf", math.inf, None):
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST:
        raise Unusable(f"request_rate = {shown(value)}: must be a number above 0 or inf")
    return float(value)


def shown(value: Any) -> str:
    """A value as an error names it, of bounded length."""
    written = type(value).__name__ if isinstance(value, Mapping | list) else repr(value)
    return written if len(written) <= _SHOWN else f"{written[: _SHOWN - 3]}..."
