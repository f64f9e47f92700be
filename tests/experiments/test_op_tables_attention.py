"""Rows of the attention and KDA tables: one row of each kind worked by hand, and what is left out."""

import numpy as np
import pytest

from experiments.op_curves import attention, state
from experiments.op_curves.rows import Group


@pytest.fixture(scope="module")
def by_name() -> dict[str, Group]:
    return {g.name: g for g in [*attention.groups(), *state.groups()]}


def _row(group: Group, microseconds: float) -> dict[str, float]:
    (index,) = np.flatnonzero(np.isclose(group.seconds, microseconds * 1e-6, rtol=1e-9))
    return {name: float(column[index]) for name, column in group.features.items()}


def test_an_mla_row_is_what_absorbed_decode_computes_and_moves(by_name):
    # 16 requests x 4096 tokens x 128 heads: 53.437 us in the table
    row = _row(by_name["mla_decode h800 bf16"], 53.437)
    assert row["flops"] == 16 * 4096 * 128 * 2 * (576 + 512)
    assert row["bytes"] == 16 * 4096 * 576 * 2 + 16 * 128 * 2 * (576 + 512)
    assert row["resident"] == 16 * 4096 * 576 * 2
    # 132 // 16 // 2 = 4 splits of 1024 tokens; two CTAs each
    assert (row["splits"], row["ctas"]) == (4, 128)


def test_no_split_is_shorter_than_its_least_tokens():
    one = np.ones(3)
    tokens = np.array([256.0, 1024.0, 65536.0])
    np.testing.assert_array_equal(attention.splits(132, one, one, tokens), [1, 4, 32])


def test_a_grouped_query_row_reads_each_pair_of_heads_once(by_name):
    # 32 query heads over 8 pairs, 16 requests x 4096 tokens: 99.783 us
    row = _row(by_name["gqa_decode h800"], 99.783)
    assert row["bytes"] == 16 * 4096 * 8 * 2 * 128 * 2 + 16 * 32 * 128 * 2 * 2
    assert row["flops"] == 16 * 4096 * 32 * 4 * 128


def test_prefill_counts_half_of_a_prompt_and_all_that_an_index_chose(by_name):
    group = by_name["mla_prefill h800"]
    assert _row(group, 1104.692)["flops"] == 4096 * 2048 * 128 * 2 * (128 + 64 + 128)
    assert _row(group, 3602.816)["flops"] == 4096 * 2048 * 128 * 2 * (576 + 512)


def test_a_state_step_reads_and_writes_the_state_once_and_a_verification_writes_one_a_token(by_name):
    states = 4 * 128 * 128 * 96 * 1024
    step = by_name["state h200"]
    (most,) = np.flatnonzero((step.features["resident"] == states) & (step.features["steps"] == 1))
    assert step.features["bytes"][most] == 2 * states + 1024 * 96 * 128 * 10
    assert step.features["copied"][most] == 0
    assert step.seconds[most] == pytest.approx(3579.1e-6, rel=1e-4)
    eight = step.features["steps"] == 8
    # seven more states stay behind, of four bytes a value
    np.testing.assert_array_equal(step.features["copied"][eight] * 4, 7 * step.features["resident"][eight])


def test_a_prompt_is_walked_in_chunks_of_64(by_name):
    chunk = by_name["state_chunk b200"]
    steps = chunk.features["steps"]
    assert steps.min() == 1
    assert steps.max() == 32768 / 64
    # one token does the work of a whole chunk
    assert chunk.features["flops"].min() == 7 * 128 * 128 * 12 * 64


def test_what_is_left_out_is_counted(by_name):
    flagged = {name: sum(g.flagged.values()) for name, g in by_name.items() if g.flagged}
    assert flagged == {
        "mla_decode h200 bf16": 1448,
        "gqa_decode h800": 1,
        "dsa_decode h800": 1,
        "state b200": 36,
        "state gb200": 36,
    }
    assert by_name["gqa_decode h800"].seconds.min() > 20e-6
    assert len(by_name["mla_decode b200 fp8"].seconds) == 1448


def test_every_row_is_one_problem_of_its_group(by_name):
    for group in by_name.values():
        assert len(np.unique(group.shape)) == len(group.shape), group.name
        assert all((column >= 0).all() for column in group.features.values()), group.name
        assert (group.features["bytes"] > 0).all(), group.name
