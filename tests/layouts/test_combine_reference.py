"""The DCP merge against plain attention in float64: any split, empty ranks, rows without any token."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.combine.reference import merge, partial_attention

ROWS, HEADS, KEY, WIDTH = 3, 2, 8, 4


def full_attention(query, keys, values, scale):
    """Attention over all tokens in NumPy float64, and its log-sum-exp."""
    scores = np.einsum("rhk,thk->rht", query, keys) * scale
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("rht,thw->rhw", weights / total, values), (highest + np.log(total))[..., 0]


def problem(seed, tokens, spread=1.0):
    random = np.random.default_rng(seed)
    query = random.normal(size=(ROWS, HEADS, KEY)) * spread
    return query, random.normal(size=(tokens, HEADS, KEY)), random.normal(size=(tokens, HEADS, WIDTH))


def split(query, keys, values, owners, ranks, scale):
    """What every rank computes on its own, stacked."""
    q, k, v = (jnp.asarray(x, jnp.float32) for x in (query, keys, values))
    parts = [partial_attention(q, k, v, jnp.asarray(owners == rank), scale) for rank in range(ranks)]
    return jnp.stack([output for output, _ in parts]), jnp.stack([lse for _, lse in parts])


@given(
    seed=st.integers(0, 2**20),
    owners=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    spread=st.sampled_from([0.1, 1.0, 20.0]),
)
def test_any_split_gives_full_attention(seed, owners, spread):
    """Ranks may hold any tokens, in any number; those that hold none must not matter."""
    query, keys, values = problem(seed, len(owners), spread)
    outputs, lse = split(query, keys, values, np.array(owners), 8, KEY**-0.5)
    merged, merged_lse = merge(outputs, lse)
    expected, expected_lse = full_attention(query, keys, values, KEY**-0.5)
    np.testing.assert_allclose(merged, expected, atol=1e-5)
    np.testing.assert_allclose(merged_lse, expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("absent", [np.nan, np.inf, -np.inf])
def test_a_kernel_may_mark_an_empty_rank_in_several_ways(absent):
    query, keys, values = problem(0, 12)
    outputs, lse = split(query, keys, values, np.arange(12) % 3, 4, KEY**-0.5)
    assert np.isneginf(np.asarray(lse[3])).all()
    outputs, lse = outputs.at[3].set(jnp.nan), lse.at[3].set(absent)
    merged, _ = merge(outputs, lse)
    np.testing.assert_allclose(merged, full_attention(query, keys, values, KEY**-0.5)[0], atol=1e-5)


def test_a_row_without_tokens_is_zero():
    outputs = jnp.full((4, ROWS, HEADS, WIDTH), jnp.nan, jnp.bfloat16)
    lse = jnp.full((4, ROWS, HEADS), -jnp.inf, jnp.float32)
    merged, merged_lse = merge(outputs, lse)
    assert merged.dtype == jnp.bfloat16
    assert not np.asarray(merged).any()
    assert np.isneginf(np.asarray(merged_lse)).all()


def test_equal_parts_average():
    """Two ranks of equal log-sum-exp: the mean of their outputs, log 2 more in the sum."""
    outputs = jnp.asarray([1.0, 3.0], jnp.float32).reshape(2, 1, 1, 1)
    merged, lse = merge(outputs, jnp.zeros((2, 1, 1), jnp.float32))
    assert float(merged[0, 0, 0]) == pytest.approx(2.0)
    assert float(lse[0, 0]) == pytest.approx(np.log(2.0))
