"""Every quantity against plain Python, at random valid layouts of every kind of model; and the rules behind some."""

import math
import random
from collections.abc import Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from jaxtyping import ArrayLike

from hw.arithmetic import Exact
from hw.compat import in_x64, x64
from hw.programs import compiled
from layouts.cut import Cut, cut_of
from layouts.layout import Layout
from layouts.load import Load
from layouts.models import Model
from layouts.quantities import Traits, quantities, query_tiles, split_kv
from layouts.serving.graphs import graph_batch, graph_sizes
from layouts.stages import heaviest_stages, layer_counts
from layouts.traits import traits_of
from tests.layouts.oracle import Case, captured, values
from tests.spaces import layouts, model_of

NAMES = ("kimi-k3@article", "deepseek-v3.2", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-8b")
SIZES = tuple(graph_sizes(512))
CASES = st.builds(
    Case,
    context=st.integers(1, 300_000),
    concurrency=st.integers(1, 3000),
    verify=st.integers(1, 8),
    sizes=st.just(SIZES),
    sms=st.sampled_from([132, 148, 188]),
    chunk=st.sampled_from([4096, 8192, 16384]),
)


@compiled
def _quantities(load: Load, cut: Cut, sms: ArrayLike, traits: Traits, kinds: tuple[int, ...], stages: np.ndarray):
    return {**quantities(Exact(), cut, load, traits, sms), **layer_counts(cut, kinds, stages)}


@in_x64
def computed(model: Model, layout: Layout, case: Case) -> Mapping[str, float]:
    load = Load(
        context=np.float64(case.context),
        concurrency=np.float64(case.concurrency),
        verify=np.float64(case.verify),
        chunk=np.float64(case.chunk),
        graph_sizes=np.array(case.sizes, np.float64),
        prefill=case.prefill,
    )
    found = _quantities(
        load, cut_of(layout), np.float64(case.sms), traits_of(model), model.kind_of_layer, heaviest_stages(model)
    )
    return {name: float(value) for name, value in found.items()}


def differences(model: Model, layout: Layout, case: Case) -> dict[str, tuple[float, float]]:
    found, expected = computed(model, layout, case), values(model, layout, case)
    pairs = {name: (found[name], float(expected[name])) for name in found}
    return {name: (a, b) for name, (a, b) in pairs.items() if not math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), case=CASES)
@settings(max_examples=25)
def test_every_decode_quantity_is_that_of_plain_python(name: str, data: st.DataObject, case: Case) -> None:
    layout = data.draw(layouts(name, 16) | layouts(name, 24))
    assert differences(model_of(name), layout, case) == {}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), case=CASES)
@settings(max_examples=25)
def test_every_prefill_quantity_is_that_of_plain_python(name: str, data: st.DataObject, case: Case) -> None:
    layout = data.draw(layouts(name, 16, prefill=True) | layouts(name, 24, prefill=True))
    prefill = Case(case.context, case.concurrency, 1, case.sizes, case.sms, case.chunk, True)
    assert differences(model_of(name), layout, prefill) == {}


def test_the_split_rule_of_the_article() -> None:
    """M04: 148 SMs, 5 verified tokens of 96 heads (one query a tile)."""
    with x64():
        tiles = query_tiles(Exact(), 96, 5)
        assert float(tiles) == 5
        split = [int(split_kv(Exact(), 148, batch, tiles)) for batch in (1, 2, 4, 8, 16, 24)]
        assert split == [14, 7, 3, 1, 1, 1]
        assert [2 * b * 5 * s for b, s in zip((1, 2, 4, 8, 16, 24), split, strict=True)] == [
            140,
            140,
            120,
            80,
            160,
            240,
        ]


@pytest.mark.parametrize(("text", "concurrency", "ctas"), [("attn_dp=16", 256, 160), ("attn_dp=2,dcp=8", 256, 1280)])
def test_ctas_of_the_article(text: str, concurrency: int, ctas: int) -> None:
    """S18: DP16 at 16 requests runs 160 CTAs on 148 SMs; S16: DP2 at 128 requests runs 8.6 waves."""
    attn_dp = int(text.split("=")[1].split(",")[0])
    layout = Layout(attn_dp=attn_dp, attn_tp=16 // attn_dp, dcp=16 // attn_dp, ep=16, dispatch="all_to_all")
    case = Case(100_000, concurrency, 5, SIZES, 148)
    assert computed(model_of("kimi-k3@article"), layout, case)["attention_ctas"] == ctas
    if attn_dp == 2:
        assert round(ctas / 148, 1) == 8.6


@pytest.mark.parametrize(("heads", "verify", "tiles"), [(128, 1, 1), (128, 4, 4), (64, 4, 2), (64, 5, 3), (12, 5, 1)])
def test_tiles_take_whole_queries(heads: int, verify: int, tiles: int) -> None:
    with x64():
        assert float(query_tiles(Exact(), heads, verify)) == tiles


@given(st.integers(1, 700))
def test_a_batch_runs_as_the_captured_graph_that_holds_it(requests: int) -> None:
    with x64():
        assert float(graph_batch(Exact(), requests, SIZES)) == captured(requests, SIZES)


def test_graphs_of_the_article() -> None:
    """M03: 12 requests run as 16 and 20 as 24."""
    layout = Layout(attn_dp=16, ep=16, dispatch="all_to_all")
    sizes = (1, 2, 4, 8, 16, 24)
    model = model_of("kimi-k3@article")
    for requests, runs in ((12, 16), (20, 24), (24, 24)):
        assert computed(model, layout, Case(100_000, 16 * requests, 5, sizes, 148))["batch"] == runs


def test_the_share_of_experts_touched_is_what_routing_at_random_touches() -> None:
    """896 experts, 16 a token, 56 experts a rank: 16 tokens touch a quarter of them, 48 more than half."""
    model = model_of("kimi-k3@article")
    layout = Layout(attn_dp=16, ep=16, dispatch="all_to_all")
    rng = random.Random(0)
    for requests in (1, 3):
        found = computed(model, layout, Case(1000, 16 * requests, 1, SIZES, 148))["experts_touched"]
        hits = [
            len({e for _ in range(16 * requests) for e in rng.sample(range(896), 16) if e < 56}) for _ in range(300)
        ]
        deviation = np.std(hits) / math.sqrt(len(hits))
        assert abs(np.mean(hits) - found) < 4 * deviation
        assert deviation < 0.02 * found


@pytest.mark.parametrize(
    ("layout", "sharded"),
    [
        (Layout(attn_dp=16, ep=16, weight_shard=8, dispatch="all_to_all"), (8, 8)),
        (Layout(attn_dp=2, attn_tp=8, dcp=8, ep=16, weight_shard=8, dispatch="all_to_all"), (1, 8)),
        (Layout(attn_dp=16, ep=16, weight_shard=8, dispatch="all_gather"), (8, 1)),
    ],
)
def test_a_weight_is_sharded_iff_its_module_runs_whole(layout: Layout, sharded: tuple[int, int]) -> None:
    """M17: DP16 shards attention and MoE part, DP2 x DCP8 the MoE part only."""
    found = computed(model_of("kimi-k3@article"), layout, Case(1000, 16, 5, SIZES, 148))
    assert (found["attention_shard"], found["moe_shard"]) == sharded


@pytest.mark.parametrize(
    ("layout", "groups"),
    [(Layout(attn_dp=16, ep=16, vocab_tp=8), 2), (Layout(attn_dp=2, attn_tp=8, dcp=8, ep=16, vocab_tp=8), 3)],
)
def test_process_groups_of_the_article(layout: Layout, groups: int) -> None:
    """M21: DP16 opens one of 16 and one of 8, DP2 x DCP8 one of 16 and two of 8."""
    found = computed(model_of("kimi-k3@article"), layout, Case(1000, 16, 5, SIZES, 148))
    assert found["process_groups"] == groups
