"""Whole evaluations: what must hold whatever the figures are."""

import dataclasses

import equinox as eqx
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from explorer.evaluate import Case, Evaluation, evaluate
from hw.arithmetic import Exact
from hw.compat import x64
from hw.programs import compiled
from layouts.cut import cut_of
from layouts.layout import Layout
from layouts.traits import traits_of
from tests.explorer.settings import ARTICLE, QWEN, V3, Setting, setting
from tests.spaces import model_of

MODELS = (ARTICLE, V3, QWEN)
FIELDS = ("step", "tokens_per_second", "kv_tokens", "kv_tokens_instance", "running", "slack", "remainder")


def changed(asked: Setting, **factors: float) -> Case:
    """The question on a machine with some figures multiplied."""
    case = asked.case
    with x64():
        machine = eqx.tree_at(
            lambda m: [getattr(m, name) for name in factors],
            case.machine,
            [getattr(case.machine, name) * factor for name, factor in factors.items()],
        )
    return dataclasses.replace(case, machine=machine)


def same(a: Evaluation, b: Evaluation, fields: tuple[str, ...] = FIELDS) -> None:
    for name in fields:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12, err_msg=name)


def test_a_batch_is_its_layouts_one_by_one() -> None:
    asked = setting(QWEN)
    layouts = asked.layouts(3)
    batch = asked.price(layouts)
    one = compiled(lambda cut, case: evaluate(Exact(), asked.tables, cut, case))
    for i, layout in enumerate(layouts):
        with x64():
            alone = one(cut_of(layout), asked.case)
        same(jax.tree.map(lambda leaf, i=i: leaf[i], batch), alone)


@pytest.mark.parametrize("model", MODELS)
@given(
    figure=st.sampled_from(["hbm_bandwidth", "link_bandwidth", "nic_bandwidth", "peak"]),
    factor=st.floats(1.001, 10),
    seed=st.integers(0, 100),
)
@settings(max_examples=6)
def test_a_faster_machine_is_never_slower(model: str, figure: str, factor: float, seed: int) -> None:
    asked = setting(model)
    layouts = asked.layouts(50, seed)
    before, after = asked.price(layouts), asked.price(layouts, changed(asked, **{figure: factor}))
    assert np.all(after.step <= before.step * (1 + 1e-12))
    same(before, after, ("kv_tokens", "running", "slack"))


@pytest.mark.parametrize("model", MODELS)
def test_every_figure_of_the_machine_counts_somewhere(model: str) -> None:
    asked = setting(model)
    layouts = asked.layouts(200)
    for figure in ("hbm_bandwidth", "link_bandwidth", "nic_bandwidth", "peak"):
        assert np.any(asked.price(layouts, changed(asked, **{figure: 0.1})).step > 1.01 * asked.price(layouts).step)


@pytest.mark.parametrize("model", MODELS)
def test_more_requests_never_step_faster_nor_leave_more_memory(model: str) -> None:
    asked = setting(model)
    layouts = asked.layouts(100)
    before = asked.price(layouts, asked.request.case(1))
    for concurrency in (2, 16, 100, 101, 500):
        after = asked.price(layouts, asked.request.case(concurrency))
        assert np.all(after.step >= before.step * (1 - 1e-12))
        assert np.all(after.slack <= before.slack)
        before = after


@pytest.mark.parametrize("model", MODELS)
def test_memory_adds_tokens_and_no_time(model: str) -> None:
    asked = setting(model)
    layouts = asked.layouts(100)
    before, after = asked.price(layouts), asked.price(layouts, changed(asked, memory_bytes=1.25))
    same(before, after, ("step", "tokens_per_second"))
    assert np.all(after.slack > before.slack)
    assert np.all(after.kv_tokens >= before.kv_tokens)


@pytest.mark.parametrize("model", MODELS)
def test_replicas_are_copies(model: str) -> None:
    """Two replicas on 16 GPUs are 8 GPUs twice, each with half of the requests."""
    half, both = setting(model, gpus=8, concurrency=48), setting(model, gpus=16, concurrency=96)
    layouts = half.layouts(40)
    doubled = [dataclasses.replace(layout, replicas=2 * layout.replicas) for layout in layouts]
    one, two = half.price(layouts), both.price(doubled)
    same(one, two, ("step", "kv_tokens", "slack", "remainder"))
    for field in ("tokens_per_second", "kv_tokens_instance", "running"):
        np.testing.assert_allclose(2 * getattr(one, field), getattr(two, field), rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_throughput_counts_accepted_tokens(model: str) -> None:
    """M02: requests x accepted tokens / step."""
    asked = setting(model)
    found = asked.price(asked.layouts(50))
    accepted = 3.5 if model == ARTICLE else 1.0
    np.testing.assert_allclose(found.tokens_per_second * found.step, 64 * accepted, rtol=1e-12)


def test_prefill_throughput_counts_prompt_tokens() -> None:
    asked = setting(V3, phase="prefill", chunk=4096)
    layouts = [asked.read(text) for text in ("attn_dp=4", "pp=4", "replicas=2,attn_cp=2")]
    found = asked.price(layouts)
    np.testing.assert_allclose(found.tokens_per_second * found.step, [4096, 4 * 4096, 2 * 4096], rtol=1e-12)


def test_instance_capacity_of_the_article_counts_groups_and_owners() -> None:
    """K21: 16 ranks of DP16, or 2 groups whose 8 ranks own different tokens."""
    asked = setting(ARTICLE, context=100_000)
    found = asked.price(
        [asked.read("attn_dp=16,ep=16"), asked.read("attn_dp=2,dcp=8,ep=16"), asked.read("attn_dp=2,ep=16")]
    )
    np.testing.assert_array_equal(found.kv_tokens_instance, found.kv_tokens * [16, 16, 2])


def test_what_fits_is_feasible() -> None:
    asked = setting(V3)
    found = asked.price(asked.layouts(300))
    assert np.array_equal(found.feasible, (found.slack >= 0) & (found.remainder >= 0))
    assert 0 < found.feasible.sum() < 300


def test_the_article_prefers_dcp_at_64_requests_and_dp16_at_384() -> None:
    """S10, S12: DP16 has 0.70 of the throughput at 64 requests and 1.02 at 384; only which is ahead is asked here."""
    asked = setting(ARTICLE, context=100_000)
    layouts = [asked.read("attn_dp=16,ep=16"), asked.read("attn_dp=2,dcp=8,ep=16")]
    few, many = (asked.price(layouts, asked.request.case(c)).tokens_per_second for c in (64, 384))
    assert few[0] < few[1]
    assert many[0] > many[1]


def test_whole_requests_run() -> None:
    asked = setting(ARTICLE, context=100_000)
    running = asked.price(asked.layouts(300)).running
    assert np.array_equal(running, np.round(running))


def test_traits_by_hand() -> None:
    k3, v32, oss = (traits_of(model_of(name)) for name in (ARTICLE, "deepseek-v3.2", "gpt-oss-120b"))
    assert (k3.heads, k3.kv_heads, k3.experts, k3.topk, k3.index_topk, k3.window) == (96, 16, 896, 16, 0, 0)
    assert (k3.draft_rows, v32.draft_rows) == (4, 1)
    assert (v32.heads, v32.experts, v32.topk, v32.index_topk) == (128, 256, 8, 2048)
    assert (oss.kv_heads, oss.experts, oss.topk, oss.window) == (8, 128, 4, 128)


def test_layouts_of_other_sizes_share_a_compilation() -> None:
    asked = setting(QWEN)
    assert isinstance(asked.layouts(1)[0], Layout)
    first, more = asked.price(asked.layouts(1)), asked.price(asked.layouts(2500))
    assert (len(first.step), len(more.step)) == (1, 2500)
    assert first.step[0] == more.step[0]
