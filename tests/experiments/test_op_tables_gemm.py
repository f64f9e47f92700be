"""Rows of the public GEMM tables: features by hand, and the routing of the expert tables done again."""

import numpy as np
import pytest

from experiments.op_curves import expert_loads, gemm, grouped


@pytest.fixture(scope="module")
def dense():
    return {g.name: g for g in gemm.groups()}


@pytest.fixture(scope="module")
def experts():
    return {g.name: g for g in grouped.groups()}


def test_a_dense_row_by_hand(dense):
    """First row of the B200 table: 64 rows, 3072 columns, K = 7168, bf16, 12.07 us."""
    group = dense["gemm b200 bf16"]
    work = {n: column[0] for n, column in group.features.items()}
    assert group.seconds[0] == pytest.approx(12.0693e-6, rel=1e-5)
    assert work["flops"] == 2 * 64 * 3072 * 7168
    assert work["bytes"] == 2 * (3072 * 7168 + 64 * 7168 + 64 * 3072)
    assert work["steps"] == 7168


def test_a_product_a_head_by_hand(dense):
    """One token, 128 heads, (1, 128) by (128, 512) in each."""
    group = dense["gemm_heads b200 bf16"]
    work = {n: column[0] for n, column in group.features.items()}
    assert work["flops"] == 2 * 128 * 128 * 512
    assert work["bytes"] == 2 * 128 * (128 * 512 + 128 + 512)
    assert work["steps"] == 128


def test_an_expert_row_by_hand(experts):
    """First row of the K3 table: one token to 16 of 896 experts; two products of 3584 x 3072, 17/32 bytes a weight."""
    group = experts["grouped_gemm_packed b200 mxfp4 bf16"]
    work = {n: column[0] for n, column in group.features.items()}
    assert work["flops"] == 2 * 16 * 3 * 3584 * 3072
    assert work["bytes"] == 16 * 3 * 3584 * 3072 * 17 / 32 + 2 * 16 * (3584 + 2 * 3072 + 3072 + 3584)
    assert (work["rows"], work["groups"], work["columns"]) == (16, 16, 2 * 3072 + 3584)
    assert (work["copied"], work["launches"], work["planned"]) == (2 * 16 * 3584, 2, 16 / 896)


def test_a_row_is_overtaken_only_by_a_problem_as_large():
    rows, columns = np.array([1.0, 2.0, 2.0, 4.0]), np.array([8.0, 8.0, 4.0, 8.0])
    seconds = np.array([1.2, 1.0, 1.0, 1.1])
    np.testing.assert_array_equal(gemm.overtaken(seconds, rows, columns), [True, False, False, False])
    assert not gemm.overtaken(seconds, rows, np.array([16.0, 8.0, 4.0, 8.0])).any()


def test_every_row_is_counted_once(dense, experts):
    table = {"gemm b200 bf16": 968, "gemm h200 fp8": 880, "gemm h800 fp8": 110}
    for name, total in table.items():
        assert len(dense[name].seconds) + sum(dense[name].flagged.values()) == total
    table = {
        "grouped_gemm_packed gb200 mxfp4 fp8": 3078,
        "grouped_gemm b200 fp8 fp8": 2691,
        "grouped_gemm h800 fp8": 142,
    }
    for name, total in table.items():
        assert len(experts[name].seconds) + sum(experts[name].flagged.values()) == total


def test_balanced_loads_are_dealt_out_in_turn():
    np.testing.assert_array_equal(expert_loads.dealt(4, 8, 2), [1, 1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(expert_loads.dealt(2, 8, 2), [1, 0, 1, 0, 1, 0, 1, 0])
    assert expert_loads.mean_load("balanced", 4, 8, 2, 4) == (2.0, 2.0)


def test_a_limited_router_overloads_the_first_experts():
    """Token by token: one choice in each kept group, then the lowest experts that it has not got."""
    expected = np.zeros(16, dtype=int)
    for token in range(10):
        own = {token % 4 + 4 * group for group in range(2)}
        rest = [e for e in range(16) if e not in own][:2]
        expected[[*own, *rest]] += 1
    np.testing.assert_array_equal(expert_loads.dealt_in_groups(10, 16, 4, 4, 2), expected)


@pytest.mark.parametrize("tokens", [3, 200])
def test_drawn_loads_lose_no_choice_and_the_busiest_rank_is_timed(tokens):
    loads = expert_loads.drawn(0, tokens, 64, 8, 1.2)
    assert loads.sum() == tokens * 8
    assert loads.min() >= 0
    _, rows = expert_loads.mean_load("power_law_1.2", tokens, 64, 8, 8)
    assert rows > tokens
    assert expert_loads.mean_load("power_law_1.2", tokens, 64, 8, 1)[1] == tokens * 8
