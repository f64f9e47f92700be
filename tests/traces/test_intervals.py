"""Interval arithmetic against a grid that is filled cell by cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.traces.intervals import covered, overlap, union

CELLS = 24
TIMES = st.lists(st.tuples(st.integers(0, CELLS), st.integers(0, 9)), max_size=12)


def columns(drawn: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([first for first, _ in drawn], np.int64)
    return start, np.minimum(start + np.array([length for _, length in drawn], np.int64), CELLS)


def filled(drawn: list[tuple[int, int]]) -> np.ndarray:
    grid = np.zeros(CELLS, bool)
    for first, length in drawn:
        grid[first : first + length] = True
    return grid


@given(TIMES)
def test_union_is_disjoint_in_order_and_covers_the_same(drawn: list[tuple[int, int]]):
    start, end = union(*columns(drawn))
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()
    np.testing.assert_array_equal(filled(list(zip(start, end - start, strict=True))), filled(drawn))
    assert covered(*columns(drawn)) == filled(drawn).sum()


@given(TIMES, TIMES)
def test_overlap_of_each_interval_with_the_others(mine: list[tuple[int, int]], others: list[tuple[int, int]]):
    expected = [(filled([one]) & filled(others)).sum() for one in mine]
    np.testing.assert_array_equal(overlap(*columns(mine), *columns(others)), expected)


@given(TIMES, TIMES)
def test_time_of_some_alone_is_a_difference_of_unions(some: list[tuple[int, int]], others: list[tuple[int, int]]):
    alone = covered(*columns([*some, *others])) - covered(*columns(others))
    assert alone == (filled(some) & ~filled(others)).sum()


@pytest.mark.smoke
def test_touching_intervals_are_one_and_empty_ones_none():
    start, end = union(np.array([5, 0, 3, 9]), np.array([7, 3, 5, 9]))
    assert (start.tolist(), end.tolist()) == ([0], [7])
