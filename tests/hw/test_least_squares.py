"""The solver against problems whose minimum is known by hand."""

import jax.numpy as jnp
import numpy as np

from hw.compat import in_x64
from hw.least_squares import least_squares


@in_x64
def test_rosenbrock_from_where_it_is_hard() -> None:
    """10 (y - x^2) and 1 - x: the minimum is (1, 1), at the end of a bent valley."""
    starts = jnp.array([[-1.2, 1.0], [3.0, -2.0], [1.0, 1.0]])
    theta, cost = least_squares(lambda t: jnp.stack([10.0 * (t[1] - t[0] ** 2), 1.0 - t[0]]), starts)
    np.testing.assert_allclose(theta, 1.0, atol=1e-6)
    assert float(cost.max()) < 1e-12


@in_x64
def test_a_straight_line_through_points_off_it() -> None:
    """By the normal equations: slope 1.5 and height 5/6 through (0, 1), (1, 2), (2, 4) in the second of two units."""
    x, y = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 2.0, 4.0])
    theta, cost = least_squares(lambda t: t[0] * 1e6 * x + t[1] - y, jnp.zeros((1, 2)))
    np.testing.assert_allclose(theta[0], [1.5e-6, 5.0 / 6.0], rtol=1e-8)
    np.testing.assert_allclose(cost[0], 1.0 / 6.0, rtol=1e-8)


@in_x64
def test_a_start_without_a_value_stays_and_the_others_go_on() -> None:
    theta, cost = least_squares(lambda t: jnp.log(t) - 1.0, jnp.array([[-1.0], [1.0]]))
    assert np.isnan(float(cost[0])) and float(theta[0, 0]) == -1.0
    np.testing.assert_allclose(theta[1], np.e, rtol=1e-8)
