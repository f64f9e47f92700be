"""DP-attention padding and control synchronisation against the facts and claims M33, M34, S41, B17, B23."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.serving.control import SHARED_INTEGERS, ForwardMode, Vote, agree, agree_without_exchange
from layouts.serving.errors import EngineRuleError
from layouts.serving.padding import Padding, aligned_counts, buffer_rows, effective_chunk, padding_mode

COUNTS = st.lists(st.integers(0, 600), min_size=1, max_size=16)


@pytest.mark.parametrize(
    ("counts", "extend", "graph", "mode", "rows"),
    [
        ((80, 80, 80, 80), False, False, Padding.MAX_LEN, 320),
        ((100, 100, 0, 0), False, False, Padding.MAX_LEN, 400),  # a tie: 2 x 200 = 100 x 4
        ((100, 98, 0, 0), False, False, Padding.SUM_LEN, 198),
        ((100, 98, 0, 0), False, True, Padding.MAX_LEN, 400),
        ((512, 0, 0, 0), True, False, Padding.SUM_LEN, 512),  # B17: not 512 rows on every rank
        ((512,), True, False, Padding.MAX_LEN, 512),
    ],
)
def test_padding_mode_and_rows(counts: tuple[int, ...], extend: bool, graph: bool, mode: Padding, rows: int) -> None:
    assert padding_mode(counts, extend, graph) is mode
    assert buffer_rows(mode, counts) == rows


def test_a_recurrent_model_pads_a_prefill_with_an_idle_rank() -> None:
    assert padding_mode((512, 0), True, False, recurrent=True) is Padding.MAX_LEN
    assert padding_mode((512, 8), True, False, recurrent=True) is Padding.SUM_LEN


def test_small_decode_rows_take_the_custom_all_reduce_unless_a_rank_is_idle() -> None:
    assert padding_mode((8, 8), False, True, fits_custom_all_reduce=True) is Padding.SUM_LEN
    assert padding_mode((8, 0), False, True, fits_custom_all_reduce=True) is Padding.MAX_LEN


@given(COUNTS)
def test_eager_decode_never_moves_more_than_the_other_mode(counts: list[int]) -> None:
    cost = {Padding.MAX_LEN: buffer_rows(Padding.MAX_LEN, counts), Padding.SUM_LEN: 2 * sum(counts)}
    assert cost[padding_mode(counts, False, False)] == min(cost.values())


def test_counts_are_aligned_to_attention_tp() -> None:
    assert aligned_counts((0, 1, 8, 9), 8) == (0, 8, 8, 16)
    with pytest.raises(EngineRuleError, match="non-negative"):
        aligned_counts((4, -1), 8)


def test_chunk_is_divided_over_dp_groups() -> None:
    assert effective_chunk(16384, 8) == 2048
    with pytest.raises(EngineRuleError, match="raise the chunk"):
        effective_chunk(4, 8)


def test_seven_integers_are_shared() -> None:
    assert SHARED_INTEGERS == 7


def test_votes_are_reduced_each_in_its_way() -> None:
    agreed = agree(
        [Vote(3, 3), Vote(0, 0, forward_mode=ForwardMode.IDLE), Vote(7, 7, can_cuda_graph=False)], verify_width=5
    )
    assert agreed.num_tokens == (15, 0, 35)
    assert agreed.num_tokens_for_logprob == (3, 0, 7)
    assert not agreed.can_cuda_graph
    assert agreed.can_two_batch_overlap and agreed.can_run_breakable_cuda_graph and not agreed.is_extend
    assert agreed.forward_mode is ForwardMode.DECODE
    assert agreed.idle_ranks == (1,)
    assert agreed.padded_rows == 35


def test_one_prefill_makes_an_extend_step_and_mixed_modes_have_no_common_one() -> None:
    agreed = agree([Vote(512, 1, is_extend=True, forward_mode=ForwardMode.EXTEND), Vote(2, 2)], verify_width=5)
    assert agreed.is_extend and agreed.forward_mode is None
    assert agreed.num_tokens == (512, 10)


def test_static_bound_makes_every_batch_cost_the_bound() -> None:
    steps = [agree_without_exchange(24, [Vote(n, n), Vote(1, 1)], verify_width=6) for n in (4, 8, 24)]
    assert steps[0] == steps[1] == steps[2]
    assert steps[0].num_tokens == (144, 144)


@pytest.mark.parametrize(
    ("bound", "votes", "remedy"),
    [
        (None, [Vote(4, 4)], "set both"),
        (24, [Vote(25, 25), Vote(1, 1)], "at least 25"),
        (24, [Vote(4, 4), Vote(9, 1, is_extend=True, forward_mode=ForwardMode.EXTEND)], "keep the exchange"),
    ],
)
def test_static_bound_rules(bound: int | None, votes: list[Vote], remedy: str) -> None:
    with pytest.raises(EngineRuleError, match=remedy):
        agree_without_exchange(bound, votes)
