"""Rows that a step writes into a pool, against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layouts.rows import PADDING, written

ROWS, ENTRIES = 6, 3
write = jax.jit(written)


@given(
    st.lists(st.integers(1, ROWS - 1), unique=True, max_size=ROWS - 1),
    st.integers(0, 4),
    st.integers(1, ENTRIES),
    st.randoms(),
)
def test_each_row_that_is_named_gets_its_value_and_none_is_written_for_padding(real, idle, entries, random) -> None:
    rows = [*real, *[PADDING] * idle]
    random.shuffle(rows)
    pool = np.arange(ROWS * ENTRIES * 2, dtype=np.float32).reshape(ROWS, ENTRIES, 2)
    values = -1.0 - np.arange(len(rows) * entries * 2).reshape(len(rows), entries, 2)
    expected = pool.copy()
    for row, value in zip(rows, values, strict=True):
        if row != PADDING:
            expected[row, :entries] = value
    found = write(jnp.asarray(pool), jnp.asarray(rows, jnp.int32), jnp.asarray(values, jnp.float32))
    np.testing.assert_array_equal(found, expected)


def test_values_are_kept_as_the_pool_keeps_them_and_no_row_is_said_to_come_twice() -> None:
    pool, rows = jnp.zeros((4, 2), jnp.bfloat16), jnp.array([PADDING, 3, PADDING], jnp.int32)
    values = jnp.full((3, 2), 1.001, jnp.float32)
    found = written(pool, rows, values)
    assert found.dtype == pool.dtype and found[3, 0] == jnp.bfloat16(1.001) and not found[PADDING].any()
    assert "unique_indices = true" in jax.jit(written).lower(pool, rows, values).as_text()
