"""The ledger: bytes by hand arithmetic from the facts on Kimi K3, the sum to the byte, and remedies that work."""

import json
import re
from dataclasses import replace

import pytest

from explorer.evaluate import Tables, evaluate_batch
from explorer.ledger import Ledger, ledger
from explorer.request import Request, make_request
from explorer.residents.line import Group
from hw.units import GIB, MIB
from layouts.cut import cuts_of
from layouts.serving.requests import Clamp

DP16, DP2 = "attn_dp=16,ep=16", "attn_dp=2,dcp=8,ep=16"
KDA_SLOT = 69 * (96 * 128 * 128 * 4 + (1 + 5) * 3 * 36864 * 2)
RING_SLOT = 163_215_360


def article(concurrency: int = 384, extra_slots: int | None = None, mem_fraction: float | None = None) -> Request:
    """24 requests a group under DP16 and 192 under DP2, unless told otherwise."""
    return make_request(
        "kimi-k3@article",
        "b200",
        16,
        context=100_000,
        concurrency=concurrency,
        verify_width=5,
        extra_slots=extra_slots,
        mem_fraction=mem_fraction,
    )


@pytest.fixture(scope="module")
def dp16() -> Ledger:
    request = article(extra_slots=8)
    return ledger(request, request.layout(DP16))


@pytest.fixture(scope="module")
def dp2() -> Ledger:
    request = article(extra_slots=16)
    return ledger(request, request.layout(DP2))


def test_lines_are_those_of_the_article(dp16: Ledger, dp2: Ledger):
    a, b = dp16.by_name, dp2.by_name
    assert a["linear-attention state"] == 33 * KDA_SLOT
    assert b["linear-attention state"] == 209 * KDA_SLOT // 8
    assert a["ReplaySSM ring"] == 33 * RING_SLOT
    assert a["draft KV"] == 4753 * 33 * 10_240
    assert a["staging: target"] == 2 * 627_048_448  # 1196 MiB
    assert b["staging: target"] == 350 * MIB
    assert a["staging: draft"] == 2 * 675_282_944  # 1288 MiB
    assert b["staging: draft"] == 0
    assert b["replicated Q projections"] == 24 * (28_311_552 + 12_582_912)
    assert a["req_to_token"] == 33 * 1_048_576 * 4
    assert b["req_to_token"] == 209 * 1_048_576 * 4
    assert a["DeepEP buffer"] / GIB == pytest.approx(3.499, abs=5e-4)


def test_pool_is_whole_slots_and_the_map_covers_all_of_the_group(dp16: Ledger, dp2: Ledger):
    for found, dcp, groups in ((dp16, 1, 16), (dp2, 8, 2)):
        assert found.by_name["KV pool"] == found.kv_tokens_per_rank * 13_824
        assert 0 <= found.by_name["static share left over"] < 13_824
        assert found.by_name["draft slot map"] == 8 * dcp * found.kv_tokens_per_rank
        assert found.kv_tokens_instance == found.kv_tokens_per_rank * dcp * groups


def test_budget_is_state_and_kv(dp16: Ledger):
    assert dp16.budget_bytes == dp16.of(Group.STATE) + dp16.of(Group.KV)


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "gpt-oss-120b", "deepseek-v3.2", "qwen3-30b-a3b-fp8", "kimi-k3@article"]
)
@pytest.mark.parametrize("concurrency", [1, 4096])
def test_lines_sum_to_the_free_memory_to_the_byte(model: str, concurrency: int):
    """Also where nothing fits: what is over shows as a negative rest."""
    request = make_request(model, "b200", 8, context=8192, concurrency=concurrency)
    experts = any(layer.experts for layer in request.model.layers)
    found = ledger(request, request.layout("attn_tp=8,ep=8" if experts else "attn_tp=8"))
    assert sum(line.bytes for line in found.lines) == found.free_bytes
    assert found.free_bytes == int(request.machine.memory_bytes - request.machine.start_bytes)
    assert all(line.low <= line.bytes <= line.high for line in found.lines)
    assert all(line.low == line.bytes == line.high for line in found.lines if line.exact)


def test_loading_holds_what_the_article_logged(dp16: Ledger, dp2: Ledger):
    """Article 000: 145.2 GiB at the end of loading, 47.7 of them released; 109.9 and 14.6 for DP2."""
    for found, peak, released in ((dp16, 145.2, 47.7), (dp2, 109.9, 14.6)):
        assert found.load_peak_bytes / GIB == pytest.approx(peak, rel=0.02)
        assert found.released_after_load / GIB == pytest.approx(released, rel=0.02)


def test_a_model_without_fp8_loads_what_it_keeps():
    request = make_request("llama-3.1-8b", "h200", 1)
    found = ledger(request, request.layout("attn_tp=1"))
    assert found.released_after_load == 0
    assert found.load_peak_bytes == found.of(Group.WEIGHTS)


def test_each_clamp_binds_where_it_should():
    fits = ledger(article(64), article(64).layout(DP16))
    assert (fits.binding_clamp, fits.max_running_requests) == (Clamp.MAX_RUNNING, 64)
    full = ledger(article(1024), article(1024).layout(DP16))
    assert full.binding_clamp is Clamp.KV
    assert full.max_running_requests == 16 * (full.kv_tokens_per_rank // 100_000)
    # short requests fill the state pool first
    short = make_request("kimi-k3@article", "b200", 16, context=16, concurrency=2400, verify_width=5)
    states = ledger(short, short.layout(DP16))
    assert states.binding_clamp in (Clamp.STATE, Clamp.KV)
    assert states.max_running_requests < 2400


def test_no_more_requests_run_than_there_are():
    request = article(63)
    assert ledger(request, request.layout(DP16)).max_running_requests == 63


def test_longest_context_ends_at_the_model_or_at_the_pool():
    small = make_request("llama-3.1-8b", "h100", 1, context=1000, mem_fraction=0.3)
    found = ledger(small, small.layout("attn_tp=1"))
    assert found.longest_context == found.kv_tokens_per_rank < 131_072
    large = make_request("llama-3.1-8b", "b200", 1, context=1000)
    assert ledger(large, large.layout("attn_tp=1")).longest_context == large.model.context_limit


@pytest.mark.parametrize("concurrency", [16, 64, 384, 768, 1024])
@pytest.mark.parametrize("fraction", [None, 0.6, 0.88, 0.97])
def test_feasible_as_the_batched_evaluation_says(concurrency: int, fraction: float | None):
    request = article(concurrency, mem_fraction=fraction)
    layouts = [request.layout(DP16), request.layout(DP2)]
    batch = evaluate_batch(Tables(request.model), cuts_of(layouts), request.case())
    assert [ledger(request, la).feasible for la in layouts] == list(batch.feasible)


def _number(pattern: str, text: str | None) -> float:
    match = re.search(pattern, text or "")
    assert match, text
    return float(match[1])


@pytest.mark.parametrize("text", [DP16, DP2])
def test_remedies_make_it_fit(text: str):
    request = article(1600, mem_fraction=0.9)
    found = ledger(request, request.layout(text))
    assert not found.feasible
    fewer = int(_number(r"concurrency of at most (\d+)", found.remedy))
    assert ledger(replace(request, concurrency=fewer), request.layout(text)).feasible
    more = replace(request, concurrency=fewer + fewer // 2)
    assert not ledger(more, request.layout(text)).feasible


def test_a_shorter_context_and_another_fraction_make_it_fit():
    request = article(64, mem_fraction=0.6)
    layout = request.layout(DP16)
    found = ledger(request, layout)
    assert "static share" in (found.reason or "")
    shorter = int(_number(r"context of at most (\d+)", found.remedy))
    assert ledger(replace(request, context=shorter), layout).feasible
    assert not ledger(replace(request, context=shorter + 100), layout).feasible
    least = _number(r"mem_fraction of at least ([\d.]+)", found.remedy)
    assert ledger(replace(request, mem_fraction=least), layout).feasible
    assert not ledger(replace(request, mem_fraction=least - 0.001), layout).feasible
    tight = replace(request, mem_fraction=0.99)
    over = ledger(tight, layout)
    assert "reserve" in (over.reason or "")
    most = _number(r"mem_fraction of at most ([\d.]+)", over.remedy)
    assert ledger(replace(request, mem_fraction=most), layout).feasible


def test_sharding_is_a_remedy_where_weights_stand_whole():
    request = make_request("deepseek-v3", "h100", 16, context=8192, concurrency=512)
    found = ledger(request, request.layout("attn_dp=16,ep=16"))
    assert not found.feasible
    assert "weight_shard=8" in (found.remedy or "")


def test_engine_counts_its_slots_otherwise(dp16: Ledger):
    """It deducts 24 + 1 slots and allocates 24 + 8 + 1: eight slots come out of the reserve."""
    engine = dp16.engine
    assert (engine.slots_deducted, engine.slots_allocated) == (25, 33)
    slot = KDA_SLOT + RING_SLOT + 4753 * 10_240
    assert engine.beyond_budget_bytes == 8 * slot
    assert (
        engine.kv_tokens_per_rank
        == (dp16.by_name["KV pool"] + dp16.by_name["static share left over"] + 8 * slot) // 13_824
    )


def test_engine_would_leave_another_fraction(dp16: Ledger):
    """Of 180 GiB. Graphs go up to the limit of the whole server, 384 requests: 0.5 metadata + 3 activations + 2
    communication + 0.75 graphs + 27 attention DP (16 x 384 x 3 MiB, half as much again above 300), and 2 for DeepEP."""
    assert dp16.engine_default_mem_fraction == round(1 - 35.25 / 180, 3)


def test_document_is_the_schema(dp16: Ledger):
    document = dp16.document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "memory/1"
    assert {"name", "group", "bytes", "exact", "rule", "provenance"} <= document["lines"][0].keys()
    assert "slots" in next(line["rule"] for line in document["lines"] if line["name"] == "ReplaySSM ring")
    assert document["feasible"] is True
    assert "reason" not in document
    request = article(1600)
    refused = ledger(request, request.layout(DP16)).document()
    assert refused["feasible"] is False
    assert refused["reason"] and refused["remedy"]
    assert "\n" not in refused["reason"] + refused["remedy"]
