"""Each rule broken once, with what it says; and the enumeration that reads the same rules."""

import dataclasses
from typing import Any

import pytest

from layouts.enumerate import checked, enumerate_layouts
from layouts.layout import Layout, ShardedLayers
from layouts.rules import RULES, LayoutError, Site, broken
from layouts.text import parse
from tests.spaces import model_of, slowly, space

K3, V3, V32, QWEN, LLAMA = "kimi-k3@article", "deepseek-v3", "deepseek-v3.2", "qwen3-235b-a22b", "llama-3.1-8b"
DP16 = Layout(attn_dp=16, ep=16, weight_shard=8, weight_shard_layers=ShardedLayers(1, 92, True), dispatch="all_to_all")
TP16 = Layout(attn_tp=16, expert_tp=16)
DP2 = Layout(attn_dp=2, attn_tp=8, dcp=8, ep=16, dispatch="all_to_all")


def site(name: str, prefill: bool = False, gpus: int = 16, host: int = 8, domain: int = 8) -> Site:
    return Site(model_of(name), gpus, host, domain, prefill)


@pytest.mark.parametrize("layout", [DP16, TP16, DP2], ids=["DP16", "TP16", "DP2"])
def test_the_layouts_to_break_are_valid(layout: Layout) -> None:
    assert broken(layout, site(K3)) == []


BREAKS: list[tuple[str, Site, Layout, dict[str, Any], str]] = [
    ("world", site(K3), DP16, {"replicas": 2}, "= 2 x 1 x 16 x 1 x 1 = 32, not the 16 GPUs"),
    ("stages", site(LLAMA, gpus=64), Layout(pp=64), {}, "pp = 64 exceeds the 32 layers"),
    ("dcp in attn_tp", site(K3), DP2, {"dcp": 16}, "dcp = 16 does not divide attn_tp = 8"),
    ("dcp in prefill", site(K3, True), DP2, {}, "dcp = 8 cuts decode only; prefill cuts tokens with attn_cp"),
    (
        "dcp of compressed rows",
        site("deepseek-v4-flash", gpus=8),
        Layout(attn_tp=8, ep=8),
        {"dcp": 2},
        "dcp = 2 cuts a compressed context, which SGLang 0.5.23 and vLLM 0.33.0 do not",
    ),
    ("cp in decode", site(K3), TP16, {"attn_tp": 8, "attn_cp": 2}, "attn_cp = 2 cuts prefill only"),
    (
        "cp under dsa",
        site(V32, True),
        Layout(attn_dp=2, attn_tp=4, attn_cp=2, expert_tp=16),
        {},
        "attn_cp = 2 under sparse attention refuses attn_dp = 2",
    ),
    ("heads", site(K3, gpus=64), Layout(attn_tp=64, ep=64), {}, "attn_tp = 64 does not divide the heads (96)"),
    ("kv heads", site("llama-3.1-70b", gpus=12), Layout(attn_tp=12, expert_tp=12), {}, "KV heads (8) do not divide"),
    ("kv copies", site(QWEN), TP16, {"dcp": 8}, "copies of each KV head (attn_tp / KV heads = 16 / 4)"),
    (
        "kv copies, fewer ranks than heads",
        site(QWEN, gpus=2),
        Layout(attn_tp=2, expert_tp=2, dcp=2),
        {},
        "dcp = 2 does not divide the copies of each KV head",
    ),
    ("mlp", site(LLAMA, gpus=3), Layout(attn_tp=3, expert_tp=3), {}, "does not divide the MLP width (14336)"),
    ("experts product", site(K3), DP16, {"expert_tp": 2}, "ep x expert_tp x moe_dp = 16 x 2 x 1 = 32, not tp = 16"),
    ("no experts", site(LLAMA), Layout(attn_tp=8, attn_dp=2, ep=16), {}, "ep = 16, moe_dp = 1: the model has no"),
    ("experts", site(V3, gpus=12), Layout(attn_dp=12, ep=12), {}, "ep = 12 does not divide the experts (256)"),
    (
        "blocks",
        site(V3, gpus=32),
        Layout(attn_dp=32, expert_tp=32),
        {},
        "expert_tp = 32 cuts the expert width (2048) inside a quantisation block of 128",
    ),
    ("shard width", site(K3, host=4), DP16, {}, "weight_shard = 8 does not divide tp = 16 and the 4 GPUs of a host"),
    ("shard without layers", site(K3), DP16, {"weight_shard_layers": ShardedLayers()}, "both or neither"),
    ("layers without shard", site(K3), DP16, {"weight_shard": 1}, "weight_shard_layers = 1-92+draft: both or neither"),
    ("layers past the end", site(K3), DP16, {"weight_shard_layers": ShardedLayers(1, 93)}, "past the last layer 92"),
    ("no draft", site(V3), DP16, {"weight_shard_layers": ShardedLayers(3, 60, True)}, "draft = none, attn_tp = 1"),
    (
        "draft is cut",
        site(K3),
        DP2,
        {"weight_shard": 8, "weight_shard_layers": ShardedLayers(1, 92, True)},
        "needs a draft that is whole on each rank",
    ),
    ("vocabulary", site(K3), DP16, {"vocab_tp": 3}, "vocab_tp = 3 does not divide tp = 16"),
    (
        "vocabulary groups",
        site(K3, gpus=24),
        Layout(attn_dp=8, attn_tp=3, ep=8, expert_tp=3, vocab_tp=8),
        {},
        "vocab_tp = 8 and attn_tp = 3 do not divide each other",
    ),
    (
        "copies across groups",
        site(K3),
        Layout(attn_dp=3, attn_tp=4, ep=3, moe_dp=4),
        {},
        "ep x expert_tp = 3 x 1 = 3 and attn_tp = 4 do not divide each other",
    ),
    ("backend without dcp", site(K3), TP16, {"dcp_backend": "ag_rs"}, "dcp_backend = ag_rs needs dcp > 1"),
    ("fused backend", site(K3), DP2, {"dcp_backend": "fi_a2a"}, "fi_a2a needs multi-node NVLink: the domain is 8 GPUs"),
    ("exchange", site(K3), TP16, {"dispatch": "all_to_all"}, "all_to_all needs ep = tp > 1, and ep = 1, tp = 16"),
    (
        "sum_len in decode",
        site(K3),
        Layout(attn_dp=16, ep=16, padding="sum_len"),
        {},
        "padding = sum_len: a captured decode graph has fixed shapes and pads to max_len",
    ),
    ("sum_len", site(K3), DP16, {"padding": "sum_len"}, "sum_len needs dispatch = all_gather and attn_dp > 1"),
    (
        "nothing to shard",
        site(K3),
        TP16,
        {"weight_shard": 8, "weight_shard_layers": ShardedLayers(1, 92)},
        "shards weights that run TP1, and none does under attn_tp = 16, dispatch = all_gather",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("place", "base", "change", "says"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
def test_a_broken_rule_states_its_values(place: Site, base: Layout, change: dict[str, Any], says: str) -> None:
    messages = broken(dataclasses.replace(base, **change), place)
    assert any(says in message for message in messages), messages
    assert not any("\n" in message for message in messages)


def test_every_rule_is_broken_above() -> None:
    unbroken = [r for r in RULES if all(r.holds(dataclasses.replace(b, **c), s) for _, s, b, c, _ in BREAKS)]
    assert [rule.keys for rule in unbroken] == []


def test_the_error_names_the_layout_the_rule_and_a_remedy_that_works() -> None:
    place = site(K3)
    with pytest.raises(LayoutError) as error:
        checked(parse("attn_dp=2,dcp=16,ep=16", 16, place.model), place)
    message = str(error.value)
    assert "dcp = 16 does not divide attn_tp = 8" in message
    assert "\n" not in message
    remedy = message.partition("nearest valid: ")[2].split(" or ")
    assert len(remedy) == 2
    for text in remedy:
        assert broken(parse(text, 16, place.model), place) == []


def test_a_valid_layout_passes() -> None:
    assert checked(DP16, site(K3)) is DP16


def test_seven_gpus_cut_no_heads() -> None:
    """7 does not divide the 96 heads: what is left are replicas, stages and attention groups of one."""
    place = site(K3, gpus=7)
    found = enumerate_layouts(place)
    assert found is not None
    assert all(found.layout(i).attn_tp == 1 for i in range(len(found)))


@pytest.mark.parametrize("prefill", [False, True], ids=["decode", "prefill"])
@pytest.mark.parametrize("name", [K3, QWEN])
def test_enumeration_finds_what_checking_every_combination_finds(name: str, prefill: bool) -> None:
    found = space(name, 4, 2, 4, prefill)
    layouts = [found.layout(i) for i in range(len(found))]
    assert len(set(layouts)) == len(layouts)
    assert set(layouts) == set(slowly(site(name, prefill, 4, 2, 4)))


def test_enumeration_stops_at_its_limit() -> None:
    assert enumerate_layouts(site(K3), 10) is None
    assert enumerate_layouts(site(K3), 1_000_000) is not None
