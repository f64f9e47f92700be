"""Seconds of a step that runs over and over: many in flight, as a server has them, and waited for one by one."""

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
_WAITED: Final = 3  # steps that are waited for, at least
Step = Callable[[Any], tuple[Any, Any]]
Wait = Callable[[Any], Any]


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


def times(
    step: Step, state: Any, *, rounds: int = _ROUNDS, steps: int | None = None, wait: Wait = jax.block_until_ready
) -> tuple[Times, Any]:
    """Time a step that takes its state and returns (output, state); the state that is left is returned too.

    `steps` of a short round: as many as take 40 ms if None; processes that run one step together need the same. `wait`
    returns when an output is there.
    """
    _, state = _round(step, state, 1, [], wait)  # the first one may compile, or load kernels
    estimate, state = _round(step, state, 1, [], wait)
    count = int(np.clip(_ROUND_SECONDS / estimate, 1, _MOST_STEPS)) if steps is None else steps
    synced, flight, host = [], [], []
    for _ in range(max(count, _WAITED)):
        seconds, state = _round(step, state, 1, [], wait)
        synced.append(seconds)
    for _ in range(rounds):
        short, state = _round(step, state, count, host, wait)
        long, state = _round(step, state, _LONGER * count, host, wait)
        flight.append(_in_flight(short, long, count))
    middle = float(np.median(flight))
    return Times(middle, min(flight), max(flight), float(np.median(synced)), float(np.median(host)), count), state


def _in_flight(short: float, long: float, count: int) -> float:
    """Of two rounds; a step of the long one where the machine was so unsteady that the short one took longer."""
    more = long - short
    return more / ((_LONGER - 1) * count) if more > 0 else long / (_LONGER * count)


def _round(step: Step, state: Any, steps: int, host: list[float], wait: Wait) -> tuple[float, Any]:
    """Seconds of so many steps, started one behind the other, and the state; those of each call go to `host`."""
    begin, output = time.perf_counter(), None
    for _ in range(steps):
        start = time.perf_counter()
        output, state = step(state)
        host.append(time.perf_counter() - start)
    wait(output)
    return time.perf_counter() - begin, state
