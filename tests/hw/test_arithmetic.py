"""The promises of the two arithmetics on which "Smooth becomes Exact" rests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.arithmetic import Exact, Smooth
from hw.compat import x64

TAUS = st.floats(1e-4, 0.25)
WHOLE = st.integers(0, 10_000)
SECONDS = st.floats(1e-9, 10.0)


@given(tau=TAUS, n=WHOLE)
def test_a_smooth_ceil_is_exact_at_the_integers(tau: float, n: int) -> None:
    with x64():
        assert float(Smooth(tau).ceil(float(n))) == pytest.approx(n, abs=1e-12)


@given(tau=TAUS, n=WHOLE)
def test_a_smooth_floor_is_exact_at_the_integers(tau: float, n: int) -> None:
    with x64():
        assert float(Smooth(tau).floor(float(n))) == pytest.approx(n, abs=1e-12)


@given(tau=TAUS, x=st.floats(0.0, 1e4), step=st.floats(1e-6, 0.5))
def test_a_smooth_ceil_rises(tau: float, x: float, step: float) -> None:
    with x64():
        ar = Smooth(tau)
        assert float(ar.ceil(x + step)) >= float(ar.ceil(x)) - 1e-11


@given(tau=TAUS, x=st.floats(0.0, 1e4))
def test_a_smooth_ceil_stays_within_one_of_the_true_one(tau: float, x: float) -> None:
    with x64():
        below = float(jnp.floor(x))
        assert below - 1e-9 <= float(Smooth(tau).ceil(x)) <= below + 1 + 1e-9


@given(n=st.integers(0, 1000), part=st.floats(0.01, 1.0))
def test_the_sharpest_ceil_is_the_true_one_away_from_the_step(n: int, part: float) -> None:
    # the rise ends 4 tau x after the integer, and a straight line of weight 4 tau x is left
    with x64():
        assert float(Smooth(1e-6).ceil(n + part)) == pytest.approx(float(Exact().ceil(n + part)), rel=4.1e-6)


@given(tau=st.floats(0.005, 0.25), n=st.integers(1, 1000))
def test_the_slope_of_a_smooth_ceil_is_continuous_across_integers(tau: float, n: int) -> None:
    with x64():
        slope = jax.grad(Smooth(tau).ceil)
        left, right = float(slope(n - 1e-10)), float(slope(n + 1e-10))
        assert left == pytest.approx(right, rel=1e-4, abs=1e-5)


def test_a_soft_ceil_has_a_slope_everywhere() -> None:
    with x64():
        slopes = jax.vmap(jax.grad(Smooth(0.25).ceil))(jnp.linspace(0.0, 3.0, 61))
        assert float(slopes.min()) > 0.5
        assert float(slopes.max()) < 2.0


@pytest.mark.parametrize(("x", "up", "down"), [(0.0, 0, 0), (2.0, 2, 2), (2.000001, 3, 2), (2.999, 3, 2)])
def test_the_exact_ceil_and_floor(x: float, up: int, down: int) -> None:
    with x64():
        assert float(Exact().ceil(x)) == up
        assert float(Exact().floor(x)) == down


@given(tau=TAUS, a=SECONDS, b=SECONDS)
def test_a_smooth_maximum_lies_above_by_at_most_half_tau_of_the_sum(tau: float, a: float, b: float) -> None:
    with x64():
        excess = float(Smooth(tau).maximum(a, b)) - max(a, b)
        assert -1e-12 * (a + b) <= excess <= 0.5 * tau * (a + b) * (1 + 1e-9)


@given(tau=TAUS, a=SECONDS, b=SECONDS)
def test_maximum_and_minimum_share_their_sum_and_do_not_care_for_order(tau: float, a: float, b: float) -> None:
    with x64():
        ar = Smooth(tau)
        assert float(ar.maximum(a, b) + ar.minimum(a, b)) == pytest.approx(a + b, rel=1e-12)
        assert float(ar.maximum(a, b)) == pytest.approx(float(ar.maximum(b, a)), rel=1e-9)


@given(tau=TAUS, a=SECONDS, b=SECONDS, scale=st.floats(1e-3, 1e12))
def test_a_smooth_maximum_is_the_same_in_every_unit(tau: float, a: float, b: float, scale: float) -> None:
    with x64():
        ar = Smooth(tau)
        assert float(ar.maximum(scale * a, scale * b)) == pytest.approx(scale * float(ar.maximum(a, b)), rel=1e-9)


@given(a=SECONDS, b=SECONDS)
def test_the_sharpest_maximum_is_the_true_one(a: float, b: float) -> None:
    with x64():
        true = float(Exact().maximum(a, b))
        assert true == max(a, b)
        assert float(Smooth(1e-4).maximum(a, b)) == pytest.approx(true, rel=2e-4)


@given(tau=TAUS, a=SECONDS, b=SECONDS)
def test_the_slopes_of_a_smooth_maximum_are_finite_and_sum_to_its_value(tau: float, a: float, b: float) -> None:
    # Euler: a function of degree one equals the sum of operand x slope
    with x64():
        ar = Smooth(tau)
        by_a, by_b = jax.grad(ar.maximum, argnums=(0, 1))(a, b)
        assert float(a * by_a + b * by_b) == pytest.approx(float(ar.maximum(a, b)), rel=1e-6)


def test_one_operand_of_a_smooth_maximum_may_be_zero() -> None:
    with x64():
        ar = Smooth(0.01)
        assert float(ar.maximum(0.0, 3.0)) == pytest.approx(3.0, rel=1e-4)
        assert np.isfinite(jax.grad(ar.maximum, argnums=(0, 1))(0.0, 3.0)).all()


def test_two_zeros_have_a_maximum_of_zero_and_a_slope() -> None:
    with x64():
        ar = Smooth(0.01)
        assert float(ar.maximum(0.0, 0.0)) == pytest.approx(0.0, abs=1e-100)
        assert np.allclose(jax.grad(ar.maximum, argnums=(0, 1))(0.0, 0.0), 0.5)
