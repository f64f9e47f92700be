"""GPUs and process groups against claims P04, M21, M28, M36 and D04."""

from collections import Counter

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.groups import Degrees, decode_replica, fake_dp_gpus, process_groups

DP16 = Degrees(tp=16, attn_dp=16, ep=16, vocab_tp=8)
DP2 = Degrees(tp=16, attn_dp=2, dcp=8, ep=16, vocab_tp=8)


def test_article_groups() -> None:
    assert Counter(g.size for g in process_groups(DP16)) == {16: 1, 8: 1}
    assert Counter(g.size for g in process_groups(DP2)) == {16: 1, 8: 2}


def test_expert_groups_other_than_tp_are_built() -> None:
    groups = process_groups(Degrees(tp=16, pp=2, ep=4, moe_dp=2))
    assert {g.name: g.size for g in groups} == {"tp": 16, "moe_ep": 4, "moe_tp": 2, "moe_dp": 2, "pp": 2}


def test_single_gpu_has_no_group() -> None:
    assert process_groups(Degrees(tp=1)) == ()


def test_tp64_dp4_dcp8_has_attention_tp_16() -> None:
    assert Degrees(tp=64, attn_dp=4, dcp=8).attn_tp == 16


def test_gpus() -> None:
    assert Degrees(tp=16, pp=2, attn_dp=16).gpus == 32
    assert fake_dp_gpus(2, 1, Degrees(tp=4)) == 8
    assert fake_dp_gpus(2, 2, Degrees(tp=4)) == 8
    assert fake_dp_gpus(2, 1, Degrees(tp=4, ep=4)) == 8


def test_handed_over_request_goes_to_room_modulo_replicas() -> None:
    assert [decode_replica(room, 2) for room in (0, 1, 7)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("degrees", "rule"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"tp": 8, "attn_dp": 3}, "attn_dp x attn_cp = 3"),
        ({"tp": 64, "attn_dp": 32, "dcp": 8}, "attn_tp 2 is no multiple of dcp 8"),
        ({"tp": 8, "ep": 8, "moe_dp": 2}, "ep x moe_dp = 16"),
    ],
)
def test_degrees_that_break_a_rule(degrees: dict[str, int], rule: str) -> None:
    with pytest.raises(EngineRuleError, match=rule):
        Degrees(**degrees)
