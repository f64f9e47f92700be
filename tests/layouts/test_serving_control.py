"""Control synchronisation of DP ranks against the facts and claims M33, M34 and S41."""

import pytest

from layouts.serving.control import SHARED_INTEGERS, ForwardMode, Vote, agree, agree_without_exchange
from layouts.serving.errors import EngineRuleError


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
