"""Seconds of a compiled step: one after the other with a wait between, and as many in flight as a server has."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

_ROUNDS: Final = 5
_ROUND_SECONDS: Final = 0.04
_MOST_STEPS: Final = 40
_LONGER: Final = 3  # a long round over a short one, in steps
Step = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Times:
    """Seconds of one step: `flight` a step of many that were started without a wait, `synced` waited for, and `host`
    the call alone; medians, with the least and the most of the rounds in flight.

    A round pays once for its beginning and its end, 1.3 to 1.7 ms on two H200s: `flight` is a step of those that a long
    round has more than a short one.
    """

    flight: float
    least: float
    most: float
    synced: float
    host: float
    steps: int


def times(step: Step, caches: Any) -> tuple[Times, Any]:
    """Time a step that takes caches and returns (output, caches); the caches that are left are returned too."""
    _, caches = _round(step, caches, 1, [])  # the first one may load kernels
    estimate, caches = _round(step, caches, 1, [])
    count = int(np.clip(_ROUND_SECONDS / estimate, 3, _MOST_STEPS))
    synced, flight, host = [], [], []
    for _ in range(count):
        seconds, caches = _round(step, caches, 1, [])
        synced.append(seconds)
    for _ in range(_ROUNDS):
        short, caches = _round(step, caches, count, host)
        long, caches = _round(step, caches, _LONGER * count, host)
        flight.append((long - short) / ((_LONGER - 1) * count))
    middle = float(np.median(flight))
    return Times(middle, min(flight), max(flight), float(np.median(synced)), float(np.median(host)), count), caches


def _round(step: Step, caches: Any, steps: int, host: list[float]) -> tuple[float, Any]:
    """Seconds of so many steps, started one behind the other, and the caches; those of each call go to `host`."""
    begin, output = time.perf_counter(), None
    for _ in range(steps):
        start = time.perf_counter()
        output, caches = step(caches)
        host.append(time.perf_counter() - start)
    jax.block_until_ready(output)
    return time.perf_counter() - begin, caches
