"""Seconds of a call, as a program that runs over and over sees them."""

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import numpy as np

_GROUPS: Final = 11
_ENOUGH: Final = 0.15  # seconds of a group beyond which fewer calls are in flight


def median_seconds(run: Callable[[], Any], in_flight: int = 4) -> float:
    """Median seconds of a call with `in_flight` of them queued, after one that warms up and one that tells how long.

    Results are dropped as they come.
    """
    jax.block_until_ready(run())
    started = time.perf_counter()
    jax.block_until_ready(run())
    once = time.perf_counter() - started
    queued = max(1, min(in_flight, int(_ENOUGH / once)))
    return float(np.median([_group(run, queued) for _ in range(_GROUPS)]))


class Difference(NamedTuple):
    """Median seconds by which a call of one thing is `longer` than one of another, by how much half of these lie off
    that median, and median seconds of the `whole` call."""

    longer: float
    noise: float
    whole: float


def median_difference(run: Callable[[], Any], rest: Callable[[], Any], in_flight: int = 4) -> Difference:
    """A call of `run` against one of `rest`, taken in turns, so that what slows the device for a while slows both."""
    jax.block_until_ready((run(), rest()))
    pairs = np.array([(_group(run, in_flight), _group(rest, in_flight)) for _ in range(_GROUPS)])
    more = pairs[:, 0] - pairs[:, 1]
    longer = np.median(more)
    return Difference(float(longer), float(np.median(np.abs(more - longer))), float(np.median(pairs[:, 0])))


def _group(run: Callable[[], Any], calls: int) -> float:
    started = time.perf_counter()
    last = run()
    for _ in range(calls - 1):
        del last  # its memory is the next one's: a program that is given other addresses is made ready anew
        last = run()
    jax.block_until_ready(last)
    return (time.perf_counter() - started) / calls
