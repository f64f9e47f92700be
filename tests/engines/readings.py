"""Figures of start-up logs compared."""

import pytest

from explorer.engines.logs.entries import Reading, Value


def is_reading(figure: Value | None, value: float, half_width: float) -> bool:
    """Whether a figure is `value`, to within `half_width`; both as floating-point numbers are equal."""
    return isinstance(figure, Reading) and (figure.value, figure.half_width) == (
        pytest.approx(value),
        pytest.approx(half_width),
    )


def size(number: float, decimals: int = 2) -> Reading:
    """GiB that are printed with so many decimals."""
    return Reading(number * 2**30, 0.5 * 10**-decimals * 2**30)
