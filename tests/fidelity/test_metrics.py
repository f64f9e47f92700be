"""Scores against plain Python over the same figures."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.fidelity.metrics import ranking, scores

_FIGURE = st.floats(1e-3, 1e3)
_ROW = st.tuples(_FIGURE, _FIGURE, st.floats(0.01, 1), st.floats(1, 100), st.integers(0, 2), st.integers(0, 2))


def columns(rows: list[tuple[float, ...]]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*rows, strict=True)]


def plain_quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@settings(max_examples=100, deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=12))
def test_scores_equal_plain_python(rows: list[tuple[float, ...]]) -> None:
    measured, predicted, down, up, _, _ = columns(rows)
    low, high = predicted * down, predicted * up
    found = scores(measured, predicted, low, high)
    errors = [p / m - 1 for m, p, *_ in rows]
    off = [abs(e) for e in errors]
    inside = [lo <= m <= hi for m, lo, hi in zip(measured, low, high, strict=True)]
    assert found is not None
    assert found.mape == pytest.approx(statistics.fmean(off))
    assert found.median == pytest.approx(statistics.median(off))
    assert found.bias == pytest.approx(statistics.fmean(errors))
    assert found.p90 == pytest.approx(plain_quantile(off, 0.9))
    assert found.coverage == pytest.approx(sum(inside) / len(inside))


def test_scores_by_hand() -> None:
    """Errors of +50 %, -50 %, 0 and +100 %; the range ends of the first and the third are the measurement itself."""
    measured, predicted = np.array([2.0, 2.0, 2.0, 2.0]), np.array([3.0, 1.0, 2.0, 4.0])
    found = scores(measured, predicted, np.array([2.0, 0.5, 1.0, 3.9]), np.array([4.0, 1.9, 2.0, 4.1]))
    assert found is not None
    assert (found.mape, found.median, found.bias, found.coverage) == (0.5, 0.5, 0.25, 0.5)
    assert found.p90 == pytest.approx(0.5 + 0.7 * 0.5)


def test_no_run_has_no_score() -> None:
    nothing = np.zeros(0)
    assert scores(nothing, nothing, nothing, nothing) is None
    assert ranking(nothing, nothing, nothing.astype(int), nothing.astype(int)) == (None, 0)


@settings(max_examples=150, deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=10))
def test_ranking_equals_all_pairs(rows: list[tuple[float, ...]]) -> None:
    measured, predicted, _, _, comparable, layout = columns(rows)
    points, pairs = 0.0, 0
    for i, (mi, pi, _, _, ci, li) in enumerate(rows):
        for mj, pj, _, _, cj, lj in rows[i + 1 :]:
            if ci != cj or li == lj or abs(mi - mj) / min(mi, mj) <= 0.03:
                continue
            pairs += 1
            points += 0.5 if pi == pj else float((pi < pj) == (mi < mj))
    share, counted = ranking(measured, predicted, comparable.astype(int), layout.astype(int))
    assert counted == pairs
    assert share is None if not pairs else share == pytest.approx(points / pairs)


@pytest.mark.parametrize(("other", "pairs"), [(1.0305, 1), (1.0295, 0)])
def test_the_gap_is_of_the_smaller(other: float, pairs: int) -> None:
    measured = np.array([other, 1.0])
    assert ranking(measured, measured, np.zeros(2, int), np.arange(2)) == (1 if pairs else None, pairs)


def test_ranking_by_hand() -> None:
    """Of 1.0, 1.02, 2.0 in one setting the first two are too near; the third is ranked right once, tied once."""
    measured, predicted = np.array([1.0, 1.02, 2.0, 9.0]), np.array([5.0, 6.0, 6.0, 1.0])
    share, pairs = ranking(measured, predicted, np.array([0, 0, 0, 1]), np.arange(4))
    assert (share, pairs) == (0.75, 2)
