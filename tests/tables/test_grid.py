"""Interpolation against functions that it must reproduce, and what it must refuse."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.tables.grid import Inside, interpolated

_LEVELS = np.array([8.0, 16.0, 64.0, 128.0])


def _grid(axes: int) -> np.ndarray:
    return np.array([*itertools.product(_LEVELS, repeat=axes)])


def _bilinear(sizes: np.ndarray) -> np.ndarray:
    """exp of a function bilinear in the logarithms, its slopes between 0 and 2 over the grid."""
    x, y = np.log(sizes).T
    return 1e-6 * np.exp(0.3 + 0.4 * x + 0.2 * y + 0.1 * x * y)


@given(x=st.floats(8.0, 128.0), y=st.floats(8.0, 128.0))
def test_exact_where_the_logarithm_is_bilinear(x: float, y: float):
    found = interpolated(_grid(2), _bilinear(_grid(2)), np.array([x, y]))
    assert found is not None
    assert found[0] == pytest.approx(_bilinear(np.array([[x, y]]))[0], rel=1e-9)
    assert found[1] in (Inside.ROW, Inside.INTERPOLATED)


@given(at=st.tuples(*[st.floats(8.0, 128.0)] * 3), seed=st.integers(0, 1000))
def test_between_the_corners_of_the_cell(at: tuple[float, float, float], seed: int):
    grid = _grid(3)
    seconds = np.random.default_rng(seed).uniform(1e-6, 1e-3, len(grid))
    found = interpolated(grid, seconds, np.array(at))
    assert found is not None
    low = np.array([_LEVELS[size * (1 + 1e-9) >= _LEVELS].max() for size in at])
    high = np.array([_LEVELS[size * (1 - 1e-9) <= _LEVELS].min() for size in at])
    corners = seconds[np.all((grid >= low) & (grid <= high), axis=1)]
    assert corners.min() * (1 - 1e-9) <= found[0] <= corners.max() * (1 + 1e-9)


def test_a_row_is_given_back():
    assert interpolated(_grid(2), _bilinear(_grid(2)), np.array([16.0, 64.0])) == (
        pytest.approx(_bilinear(np.array([[16.0, 64.0]]))[0]),
        Inside.ROW,
    )


@pytest.mark.parametrize(("x", "power"), [(4.0, 1.0), (256.0, 1.0), (250.0, 1.7), (5.0, 0.0)])
def test_the_last_slope_goes_on_for_a_factor_of_two(x: float, power: float):
    found = interpolated(_LEVELS[:, None], 1e-6 * _LEVELS**power, np.array([x]))
    assert found is not None
    assert found == (pytest.approx(1e-6 * x**power), Inside.EXTRAPOLATED)


@pytest.mark.parametrize("x", [3.99, 257.0])
def test_nothing_is_said_further_outside(x: float):
    assert interpolated(_LEVELS[:, None], _LEVELS, np.array([x])) is None


@pytest.mark.parametrize(("power", "expected"), [(-1.0, 0.0), (3.0, 2.0)])
def test_a_slope_beyond_reason_does_not_go_on(power: float, expected: float):
    found = interpolated(_LEVELS[:, None], _LEVELS**power, np.array([256.0]))
    assert found is not None
    assert found[0] == pytest.approx(128.0**power * 2.0**expected)


def test_one_level_says_nothing_of_others():
    one = np.array([[8.0, 1.0], [8.0, 2.0]])
    assert interpolated(one, np.array([1e-6, 2e-6]), np.array([9.0, 1.0])) is None
    assert interpolated(one, np.array([1e-6, 2e-6]), np.array([8.0, 1.0])) == (pytest.approx(1e-6), Inside.ROW)


def test_neighbours_too_far_apart_say_nothing_of_what_is_between():
    levels = np.array([[2.0], [4.0], [16.1], [32.2]])
    assert interpolated(levels, levels[:, 0], np.array([8.05])) is None
    assert interpolated(levels, levels[:, 0], np.array([3.0])) == (pytest.approx(3.0), Inside.INTERPOLATED)


def test_a_hole_is_bridged_from_the_next_level():
    """64 lacks the second axis' far end, so that 16 and 128 stand in for it, 8 times apart: too far; without 64, 32."""
    grid = np.array([(x, y) for x in (8.0, 16.0, 32.0, 64.0) for y in (1.0, 2.0) if (x, y) != (32.0, 2.0)])
    found = interpolated(grid, grid[:, 0] * grid[:, 1], np.array([24.0, 2.0]))
    assert found == (pytest.approx(48.0), Inside.INTERPOLATED)


def test_of_several_measurements_the_fastest_counts():
    twice = np.array([[8.0], [8.0], [16.0]])
    assert interpolated(twice, np.array([3.0, 2.0, 8.0]), np.array([8.0])) == (pytest.approx(2.0), Inside.ROW)


def test_no_rows_say_nothing():
    assert interpolated(np.empty((0, 2)), np.empty(0), np.array([1.0, 1.0])) is None
