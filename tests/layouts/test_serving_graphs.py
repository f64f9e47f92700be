"""Captured graph sizes against seed article 000 (M03), and the batch a request count runs in both arithmetics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.arithmetic import Exact, Smooth
from layouts.serving.errors import EngineRuleError
from layouts.serving.graphs import graph_batch, graph_sizes

ARTICLE_DP16 = (1, 2, 4, 8, 16, 24)
TAUS = (0.25, 1e-2, 1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize(("running", "runs_as"), [(12, 16), (20, 24), (24, 24), (1, 1), (5, 8), (30, 30)])
def test_article_dp16_runs_the_next_captured_size(running: int, runs_as: int) -> None:
    assert graph_batch(Exact(), running, graph_sizes(24, ARTICLE_DP16)) == runs_as


def test_explicit_sizes_are_kept_where_they_fit() -> None:
    assert graph_sizes(24, ARTICLE_DP16) == ARTICLE_DP16
    assert graph_sizes(20, ARTICLE_DP16) == (1, 2, 4, 8, 16, 20)


def test_sizes_of_attention_tp_8_with_5_rows_a_request_are_multiples_of_8() -> None:
    # The article counts 23 sizes from 8 to 192. The public rule gives all 24 multiples of 8: one more.
    sizes = graph_sizes(192, speculative=True, alignment=8, rows_a_request=5)
    assert (sizes[0], sizes[-1], len(sizes)) == (8, 192, 24)
    assert all(size % 8 == 0 for size in sizes)


def test_default_sizes_step_finer_with_speculation() -> None:
    assert graph_sizes(24) == (1, 2, 4, 8, 12, 16, 24)
    assert graph_sizes(24, speculative=True) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24)
    assert graph_sizes(600)[-4:] == (512, 544, 576, 600)
    assert graph_sizes(300, speculative=True)[-4:] == (256, 272, 288, 300)


@pytest.mark.parametrize("explicit", [(), (0, 4), (-1,)])
def test_sizes_that_are_no_batches_are_refused(explicit: tuple[int, ...]) -> None:
    with pytest.raises(EngineRuleError, match="positive"):
        graph_sizes(8, explicit)


def test_no_size_left_names_the_smallest_that_fits() -> None:
    with pytest.raises(EngineRuleError, match=r"add 8$"):
        graph_sizes(3, alignment=8, rows_a_request=5)


@given(st.sampled_from(TAUS), st.sampled_from(ARTICLE_DP16))
def test_smooth_batch_is_exact_at_captured_sizes(tau: float, size: int) -> None:
    assert graph_batch(Smooth(tau), size, ARTICLE_DP16) == pytest.approx(size, rel=1e-6)


@given(st.integers(1, 40))
def test_smooth_batch_becomes_exact(running: int) -> None:
    assert graph_batch(Smooth(1e-4), running, ARTICLE_DP16) == pytest.approx(
        float(graph_batch(Exact(), running, ARTICLE_DP16)), rel=1e-3
    )


def test_smooth_batch_has_a_slope_between_sizes() -> None:
    slope = jax.grad(lambda n: graph_batch(Smooth(0.25), n, ARTICLE_DP16))
    assert float(slope(12.0)) > 0.1
    assert float(slope(40.0)) == pytest.approx(1.0)


def test_batches_and_padded_size_lists_broadcast() -> None:
    running = jnp.array([[3.0, 9.0], [17.0, 50.0]])
    padded = (*ARTICLE_DP16, 24, 24)
    np.testing.assert_array_equal(graph_batch(Exact(), running, padded), [[4, 16], [24, 50]])
