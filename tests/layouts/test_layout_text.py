"""Layouts as text: derived values by hand, and parse and print as inverses."""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from layouts.layout import DCP_BACKENDS, DISPATCHES, KEYS, PADDINGS, Layout, ShardedLayers, resolve
from layouts.text import LayoutTextError, parse, parse_keys, text_of
from tests.spaces import layouts, model_of

K3 = "kimi-k3@article"
NAMES = (K3, "deepseek-v3", "qwen3-235b-a22b", "llama-3.1-8b")

DEGREES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 64])
SHARDED = st.just(ShardedLayers()) | st.builds(
    lambda first, more, draft: ShardedLayers(first, first + more, draft),
    st.integers(0, 90), st.integers(0, 90), st.booleans(),
)  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{key.name: DEGREES for key in KEYS},
    "weight_shard_layers": SHARDED,
    "dcp_backend": st.sampled_from(DCP_BACKENDS),
    "dispatch": st.sampled_from(DISPATCHES),
    "padding": st.sampled_from(PADDINGS),
}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_parse_undoes_print_for_valid_layouts(name: str, data: st.DataObject) -> None:
    layout = data.draw(layouts(name, 16) | layouts(name, 24) | layouts(name, 8, prefill=True))
    text = text_of(layout, model_of(name))
    assert parse(text, layout.gpus, model_of(name)) == layout


@pytest.mark.parametrize("name", NAMES)
@given(st.fixed_dictionaries(VALUES))
def test_parse_undoes_print_for_any_layout(name: str, fields: dict[str, Any]) -> None:
    """Valid or not: an error message prints a broken layout so that it can be written again."""
    layout = Layout(**fields)
    assert parse(text_of(layout, model_of(name)), layout.gpus, model_of(name)) == layout


@pytest.mark.parametrize("name", NAMES)
@given(st.fixed_dictionaries({}, optional=VALUES), st.integers(1, 96))
def test_parse_undoes_print_for_resolved_layouts(name: str, keys: dict[str, Any], gpus: int) -> None:
    layout = resolve(keys, gpus, model_of(name))
    assert all(getattr(layout, key) == value for key, value in keys.items())
    assert parse(text_of(layout, model_of(name)), layout.gpus, model_of(name)) == layout


@given(data=st.data())
def test_the_text_is_as_short_as_it_can_be_beside_attn_dp(data: st.DataObject) -> None:
    layout = data.draw(layouts(K3, 16))
    keys = parse_keys(text_of(layout, model_of(K3)))
    for name in keys:
        fewer = {k: v for k, v in keys.items() if k != name}
        assert name == "attn_dp" or resolve(fewer, 16, model_of(K3)) != layout


@pytest.mark.parametrize(
    ("name", "gpus", "text", "expected"),
    [
        (K3, 16, "attn_dp=2,dcp=8,ep=16", {"attn_tp": 8, "tp": 16, "expert_tp": 1, "dispatch": "all_to_all"}),
        (K3, 16, "attn_dp=2,dcp=8,ep=16", {"weight_shard": 8, "weight_shard_layers": ShardedLayers(1, 92)}),
        (K3, 16, "attn_dp=16,ep=16", {"attn_tp": 1, "weight_shard_layers": ShardedLayers(1, 92, True), "vocab_tp": 8}),
        (K3, 16, "attn_tp=8", {"attn_dp": 2, "ep": 1, "expert_tp": 16, "dispatch": "all_gather", "weight_shard": 1}),
        (K3, 16, "pp=16", {"tp": 1, "attn_tp": 1, "ep": 1, "expert_tp": 1, "dispatch": "all_gather", "vocab_tp": 1}),
        (K3, 16, "replicas=2", {"tp": 8, "attn_tp": 8, "gpus": 16}),
        (K3, 24, "attn_tp=3,ep=8", {"attn_dp": 8, "expert_tp": 3, "vocab_tp": 3}),
        ("deepseek-v3", 16, "expert_tp=2", {"ep": 8, "attn_tp": 16, "weight_shard": 1, "vocab_tp": 16}),
        ("deepseek-v3", 16, "attn_dp=4", {"attn_tp": 4, "vocab_tp": 4, "padding": "max_len", "dcp_backend": "a2a"}),
        ("deepseek-v3", 64, "attn_dp=4,dcp=8", {"attn_tp": 16, "tp": 64}),
        ("deepseek-v3", 16, "attn_cp=4,pp=2", {"attn_tp": 2, "tp": 8}),
        ("deepseek-v3", 16, "", {"attn_tp": 16, "pp": 1, "replicas": 1}),
    ],
)
def test_what_is_left_out_is_derived(name: str, gpus: int, text: str, expected: dict[str, Any]) -> None:
    layout = parse(text, gpus, model_of(name))
    assert {key: getattr(layout, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "gpus", "copies"), [("attn_dp=8", 8, 1), ("attn_dp=2", 8, 4), ("attn_dp=4,dcp=8", 64, 2)]
)
def test_copies_of_a_request_follow_attn_tp_and_dcp(text: str, gpus: int, copies: int) -> None:
    """D03, D04: the source has attn_tp 16 and two copies for TP64 / DP4 / DCP8, whatever one article says."""
    layout = parse(text, gpus, model_of("deepseek-v3"))
    assert layout.attn_tp // layout.dcp == copies


DP16 = Layout(attn_dp=16, ep=16, vocab_tp=8, dispatch="all_to_all")
DP2 = dataclasses.replace(DP16, attn_dp=2, attn_tp=8, dcp=8)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (dataclasses.replace(DP2, weight_shard=8, weight_shard_layers=ShardedLayers(1, 92)), "attn_dp=2,dcp=8,ep=16"),
        (dataclasses.replace(DP16, weight_shard=8, weight_shard_layers=ShardedLayers(1, 92, True)), "attn_dp=16,ep=16"),
        (DP16, "attn_dp=16,ep=16,weight_shard=1"),
        (Layout(attn_tp=16, expert_tp=16, vocab_tp=8), "attn_dp=1"),
    ],
)
def test_print_keeps_what_people_write(layout: Layout, text: str) -> None:
    assert text_of(layout, model_of(K3)) == text


def test_spaces_and_empty_parts_are_no_matter() -> None:
    assert parse_keys(" attn_dp = 2 ,, dcp=8 ,") == {"attn_dp": 2, "dcp": 8}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("atn_dp=2", "layout key 'atn_dp' is unknown: did you mean attn_dp?"),
        ("zzz=2", "layout key 'zzz' is unknown: keys: replicas, pp, attn_dp"),
        ("=2", "layout key '' is unknown"),
        ("attn_dp", "layout key attn_dp has no value: write attn_dp=VALUE"),
        ("attn_dp=", "layout key attn_dp has no value"),
        ("ep=2,ep=2", "layout key ep is given twice: keep one"),
        ("ep=two", "ep=two: write a whole number from 1 to"),
        ("ep=2.0", "ep=2.0: write a whole number"),
        ("ep=-2", "ep=-2: write a whole number"),
        ("ep=0", "ep=0: write a whole number"),
        ("ep=²", "ep=²: write a whole number"),
        ("ep=99999999999999999999999", "write a whole number from 1 to 1048576"),
        ("ep=2000000", "write a whole number from 1 to 1048576"),
        ("dispatch=alltoall", "dispatch=alltoall: choose one of all_gather, all_to_all"),
        ("dcp_backend=nccl", "dcp_backend=nccl: choose one of ag_rs, a2a, fi_a2a"),
        ("weight_shard_layers=9-1", "weight_shard_layers=9-1: write none, FIRST-LAST or FIRST-LAST+draft"),
        ("weight_shard_layers=all", "as in 1-92"),
    ],
)
def test_text_that_names_no_layout(text: str, says: str) -> None:
    with pytest.raises(LayoutTextError) as error:
        parse_keys(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_document_form_holds_every_resolved_value() -> None:
    layout = parse("attn_dp=16,ep=16", 16, model_of(K3))
    found = layout.as_dict()
    assert list(found) == [key.name for key in KEYS]
    assert found["weight_shard_layers"] == "1-92+draft"
    assert parse(",".join(f"{k}={v}" for k, v in found.items()), 16, model_of(K3)) == layout
    assert {f.name for f in dataclasses.fields(Layout)} == set(found)
