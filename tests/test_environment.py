"""The guarantees that `conftest.py` promises to every other test."""

import warnings

import jax
import jax.numpy as jnp
import pytest


@pytest.mark.smoke
def test_sixteen_devices_are_simulated() -> None:
    assert jax.device_count() == 16


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="no available implicit dtype promotion"):
        jnp.add(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.int32))


def test_mixed_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="rank"):
        jnp.add(jnp.ones((2, 2)), jnp.ones(2))


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning):
        warnings.warn("heard", stacklevel=1)
