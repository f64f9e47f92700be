"""Interpolation on a grid of measured points that may have holes: linear in the logarithms of sizes and seconds.

Between two levels of an axis that is a power law through both, which times of kernels follow piece by piece: flat where
a latency binds, proportional where bandwidth or arithmetic does.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float

# Neighbours that stand further apart do not say what is between them, and nothing is said further outside than this.
WIDEST_GAP: Final = 4.0
FURTHEST: Final = 2.0
# Nothing gets faster with size, and nothing measured here grows by more than its square.
_SLOPES: Final = (0.0, 2.0)
_SAME: Final = 1e-9


class Inside(IntEnum):
    """How a value was found, best first."""

    ROW = 0
    INTERPOLATED = 1
    EXTRAPOLATED = 2


class Value(NamedTuple):
    """The logarithm of seconds, and how it was found."""

    log: float
    inside: Inside


def interpolated(
    sizes: Float[np.ndarray, "rows axes"], seconds: Float[np.ndarray, " rows"], at: Float[np.ndarray, " axes"]
) -> tuple[float, Inside] | None:
    """Seconds at a point; None where the measured points do not cover it.

    All figures are above 0. Of several measurements at one point the fastest counts. Each axis in turn is interpolated
    between the nearest levels on both sides that cover the rest; these may be `WIDEST_GAP` apart. A point outside may
    be `FURTHEST` times the last level or below it by as much; the slope from the level before goes on.
    """
    found = _value(np.log(sizes), np.log(seconds), np.log(at))
    return None if found is None else (float(np.exp(found.log)), found.inside)


def _value(sizes: np.ndarray, seconds: np.ndarray, at: np.ndarray) -> Value | None:
    if not len(seconds):
        return None
    if not len(at):
        return Value(float(seconds.min()), Inside.ROW)
    column, here = sizes[:, 0], at[0]
    same = np.abs(column - here) < _SAME
    if same.any() and (found := _value(sizes[same, 1:], seconds[same], at[1:])) is not None:
        return found
    below = _nearest(sizes, seconds, at, np.unique(column[column < here - _SAME])[::-1])
    above = _nearest(sizes, seconds, at, np.unique(column[column > here + _SAME]))
    if below and above and above[0][0] - below[0][0] <= np.log(WIDEST_GAP) + _SAME:
        return _between(here, *below[0], *above[0])
    return _beyond(here, below if below else above) if not (below and above) else None


def _nearest(sizes: np.ndarray, seconds: np.ndarray, at: np.ndarray, levels: np.ndarray) -> list[tuple[float, Value]]:
    """The first two of some levels that cover the other axes, within reach of the point."""
    found: list[tuple[float, Value]] = []
    for level in levels[np.abs(levels - at[0]) <= np.log(WIDEST_GAP * FURTHEST)]:
        rows = sizes[:, 0] == level
        if (value := _value(sizes[rows, 1:], seconds[rows], at[1:])) is not None:
            found.append((float(level), value))
        if len(found) == 2:
            break
    return found


def _between(here: float, low: float, at_low: Value, high: float, at_high: Value) -> Value:
    share = (here - low) / (high - low)
    log = at_low.log + share * (at_high.log - at_low.log)
    return Value(float(log), max(at_low.inside, at_high.inside, Inside.INTERPOLATED))


def _beyond(here: float, levels: list[tuple[float, Value]]) -> Value | None:
    if len(levels) < 2 or abs(here - levels[0][0]) > np.log(FURTHEST) + _SAME:
        return None
    (edge, at_edge), (inner, at_inner) = levels
    slope = np.clip((at_edge.log - at_inner.log) / (edge - inner), *_SLOPES)
    return Value(float(at_edge.log + slope * (here - edge)), Inside.EXTRAPOLATED)
