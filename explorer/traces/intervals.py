"""Stretches of time as arrays of starts and ends: how much of time they cover, alone and together.

Everything follows from the union. Time in which only some of the events run is the union of all less the union of the
others.
"""

import numpy as np
from jaxtyping import Int

Times = Int[np.ndarray, " intervals"]


def union(start: Times, end: Times) -> tuple[Times, Times]:
    """Disjoint intervals in order that cover the same time; those that touch become one, empty ones none."""
    some = end > start
    order = np.argsort(start[some], kind="stable")
    start, reach = start[some][order], np.maximum.accumulate(end[some][order])
    if not len(start):
        return start, reach
    first = np.append(True, start[1:] > reach[:-1])
    return start[first], reach[np.append(first[1:], True)]


def covered(start: Times, end: Times) -> int:
    """Time in which at least one of the intervals runs."""
    starts, ends = union(start, end)
    return int((ends - starts).sum())


def overlap(start: Times, end: Times, others_start: Times, others_end: Times) -> Times:
    """For each interval, how much of it the union of some others covers."""
    starts, ends = union(others_start, others_end)
    if not len(starts):
        return np.zeros_like(start)
    before = np.append(0, np.cumsum(ends - starts))

    def until(time: Times) -> Times:
        """What the others cover before a time."""
        at = np.searchsorted(starts, time, side="right")
        last = np.maximum(at - 1, 0)
        return np.where(at > 0, before[last] + np.minimum(time, ends[last]) - starts[last], 0)

    return np.where(end > start, until(end) - until(start), 0)
