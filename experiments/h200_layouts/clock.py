"""Seconds of a compiled step: one after the other with a wait between, and as many in flight as a server has."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

_ROUNDS: Final = 5
_ROUND_SECONDS: Final = 0.06
_MOST_STEPS: Final = 40


@dataclass(frozen=True)
class Times:
    """Seconds of one step: `flight` a step of several that were started without a wait, `synced` waited for, and `host`
    the call alone; medians, with the least and the most of the rounds in flight."""

    flight: float
    least: float
    most: float
    synced: float
    host: float
    steps: int


def times(step: Callable[[Any], tuple[Any, Any]], caches: Any) -> tuple[Times, Any]:
    """Time a step that takes caches and returns (output, caches); the caches that are left are returned too."""
    _, caches = _waited(step, caches)  # the first one may load kernels
    estimate, caches = _waited(step, caches)
    count = int(np.clip(_ROUND_SECONDS / estimate, 3, _MOST_STEPS))
    synced, flight, host = [], [], []
    for _ in range(count):
        seconds, caches = _waited(step, caches)
        synced.append(seconds)
    for _ in range(_ROUNDS):
        begin, output = time.perf_counter(), None
        for _ in range(count):
            start = time.perf_counter()
            output, caches = step(caches)
            host.append(time.perf_counter() - start)
        jax.block_until_ready(output)
        flight.append((time.perf_counter() - begin) / count)
    middle = float(np.median(flight))
    return Times(middle, min(flight), max(flight), float(np.median(synced)), float(np.median(host)), count), caches


def _waited(step: Callable[[Any], tuple[Any, Any]], caches: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    output, caches = step(caches)
    jax.block_until_ready(output)
    return time.perf_counter() - start, caches
