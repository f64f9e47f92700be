"""Parameters that made some rows are found again, and what was left out is predicted."""

import jax.numpy as jnp
import numpy as np
import pytest

from hw.compat import x64
from hw.curve_forms import Free
from hw.fitting import fit

FREE = {"latency": Free(5e-6, 1e-7, 1e-4), "pace": Free(0.5, 0.01, 1.0)}


def rows(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Sizes in bytes, and 8 us + size / (0.8 of 1 TB/s)."""
    draw = np.random.default_rng(0)
    size = 10.0 ** draw.uniform(4, 9, 200)
    return size, (8e-6 + size / 0.8e12) * np.exp(noise * draw.standard_normal(200))


def fitted(size: np.ndarray, seconds: np.ndarray):
    with x64():
        asked = jnp.asarray(size)
    return fit(lambda p: p["latency"] + asked / (1e12 * p["pace"]), FREE, seconds, np.arange(len(size)), size)


def test_parameters_come_back() -> None:
    values, quality = fitted(*rows(0.0))
    assert values == pytest.approx({"latency": 8e-6, "pace": 0.8}, rel=0.02)
    assert quality.held_out < 0.01
    assert quality.extrapolated < 0.01


def test_rows_held_out_are_off_by_the_noise() -> None:
    _, quality = fitted(*rows(0.1))
    assert quality.held_out == pytest.approx(0.0674, abs=0.02)  # the median of |N(0, 0.1)|
    assert quality.held_out_p80 == pytest.approx(0.128, abs=0.03)


def test_a_row_out_of_line_does_not_pull() -> None:
    size, seconds = rows(0.0)
    seconds[:10] *= 5.0
    values, _ = fitted(size, seconds)
    assert values == pytest.approx({"latency": 8e-6, "pace": 0.8}, rel=0.05)


def test_a_form_that_is_wrong_shows_where_nothing_was_fitted() -> None:
    """Rows with a cost that grows faster than their size: the largest tenth is missed by more than the others."""
    size, seconds = rows(0.0)
    _, quality = fitted(size, seconds * (1.0 + (size / 3e8) ** 2))
    assert quality.extrapolated > 3 * quality.held_out
    assert quality.extrapolated_bias < 0
