"""Relaxation, descent and rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.evaluate import Tables
from explorer.planner import Bracket, gradient_pool, plan
from explorer.relax import Free, Relaxed, bounds_of, case_from, cut_from, random_starts, rule_excess
from explorer.request import Request, make_request
from explorer.rounding import MOST_EXACT, identities, neighbours, rounded
from explorer.search import goal_of, search
from hw.compat import x64
from layouts.enumerate import enumerate_layouts
from layouts.rules import broken


@pytest.fixture(scope="module")
def small() -> Request:
    return make_request("qwen3-30b-a3b-fp8", "h100", 8, context=8192, concurrency=32)


@pytest.mark.parametrize(("model", "gpus"), [("kimi-k3@article", 16), ("glm-5.2", 24), ("llama-3.1-70b", 12)])
def test_degrees_multiply_to_the_gpus_by_construction(model: str, gpus: int) -> None:
    request = make_request(model, "b200", gpus, context=4096, concurrency=16)
    bounds = bounds_of(request.site)
    with x64():
        cuts = jax.vmap(lambda r: cut_from(r, bounds))(jax.tree.map(jnp.asarray, random_starts(3, 64)))
        assert np.allclose(cuts.replicas * cuts.pp * cuts.attn_dp * cuts.attn_tp * cuts.attn_cp, gpus)
        assert np.allclose(cuts.ep * cuts.expert_tp * cuts.moe_dp, cuts.tp)
        assert (np.asarray(cuts.dcp) <= np.asarray(cuts.attn_tp) * (1 + 1e-12)).all()
        assert np.allclose(cuts.attn_cp, 1.0)
        for weights in (cuts.dcp_backend, cuts.dispatch, cuts.padding):
            assert np.allclose(weights.sum(axis=1), 1.0)
        if not request.site.moes:
            assert np.allclose(cuts.ep, 1.0)


def test_the_rules_hold_where_the_excess_is_zero(small: Request) -> None:
    space = enumerate_layouts(small.site)
    assert space is not None
    bounds = bounds_of(small.site)
    with x64():
        excess = jax.vmap(lambda cut: rule_excess(cut, bounds))(jax.tree.map(jnp.asarray, space.cuts()))
        assert float(jnp.abs(excess).max()) < 1e-12


def test_only_what_was_left_open_is_chosen() -> None:
    open_request = make_request("qwen3-30b-a3b-fp8", "h100", 8, objective="throughput", context=8192)
    fixed = make_request("qwen3-30b-a3b-fp8", "h100", 8, context=8192, concurrency=3, mem_fraction=0.8, extra_slots=5)
    with x64():
        start: Relaxed = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), random_starts(0, 1))
        posed = case_from(start, open_request.case(), Free.of(open_request))
        assert 0.05 < np.asarray(posed.budget.mem_fraction) < 0.97 and np.asarray(posed.load.concurrency) > 1
        kept = case_from(start, fixed.case(), Free.of(fixed))
        assert (np.asarray(kept.load.concurrency), np.asarray(kept.budget.mem_fraction)) == (3.0, 0.8)
        assert np.asarray(kept.budget.extra_slots) == 5.0


def test_a_descent_moves_every_start_and_keeps_it_finite(small: Request) -> None:
    tables = Tables(small.model)
    found = search(small, tables)
    with x64():
        before = jax.vmap(lambda r: cut_from(r, bounds_of(small.site)))(
            jax.tree.map(jnp.asarray, random_starts(small.seed, len(found.losses)))
        )
    assert np.isfinite(found.losses).all() and (np.diff(found.losses) >= 0).all()
    moved = np.abs(np.log2(np.sort(np.asarray(found.cuts.attn_tp))) - np.log2(np.sort(np.asarray(before.attn_tp))))
    assert moved.max() > 0.1
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(found.cuts))


def test_a_plan_is_deterministic_and_as_good_as_the_whole_space(small: Request) -> None:
    first, second = plan(small), plan(small)
    assert first.best.layout == second.best.layout
    assert first.best.step_seconds == second.best.step_seconds
    assert first.search.exact_evaluations <= MOST_EXACT
    assert first.search.regret is not None and 0.0 <= first.search.regret < 0.05
    assert first.best.certified and first.best.feasible
    steps = [candidate.step_seconds for candidate in first.candidates]
    assert steps == sorted(steps)
    assert len({candidate.layout for candidate in first.candidates}) == len(steps)


def test_rounding_gives_valid_layouts_that_differ_in_what_matters(small: Request) -> None:
    tables = Tables(small.model)
    found = search(small, tables)
    near, ends = rounded(found, small.site, 12)
    assert (
        len(near)
        == len(ends)
        == len(set(identities(near, ("replicas", "pp", "attn_dp", "attn_tp", "dcp", "ep", "dispatch"))))
    )
    assert all(not broken(near.layout(row), small.site) for row in range(len(near)))
    beside = neighbours(near.take(np.array([0])), near, small.site, 5, major=False)
    assert 0 < len(beside) <= 5
    keys = tuple(near.columns)
    assert not set(identities(beside, keys)) & set(identities(near, keys))
    assert len(gradient_pool(small, tables, goal_of(small), found).loss) <= MOST_EXACT


@given(most=st.integers(1, 5000), times=st.floats(1 / 8, 64))
def test_a_bracket_closes_on_a_straight_limit(most: int, times: float) -> None:
    """Limits are nearly straight in the requests; a few looks from near by come within a tenth of the most that fit."""

    def excess(requests: np.ndarray) -> np.ndarray:
        return requests / most - 1.0

    bracket, requests = Bracket.open(1), np.array([max(int(most * times), 1)])
    best = 0
    for _ in range(6):
        over = excess(requests)
        best = max(best, int(requests[0]) if over[0] <= 0 else 0)
        bracket = bracket.closed(requests, over)
        requests = bracket.next()
    assert best >= 0.9 * most - 1


def test_an_open_concurrency_ends_inside_its_limits() -> None:
    request = make_request("qwen3-30b-a3b-fp8", "h100", 8, context=8192, objective="throughput", max_tpot_ms=20.0)
    found = plan(request)
    assert found.search.exact_evaluations <= MOST_EXACT
    assert not found.best.certified
    assert found.best.tpot_seconds is not None and found.best.tpot_seconds <= 0.020
    assert found.best.ledger.feasible and (found.best.request.concurrency or 0) > 8
