"""Two layouts side by side, held against the figures of article 000."""

import json

import pytest

from explorer.comparison import Class, Comparison, Row, compare
from explorer.ledger import ledger
from explorer.request import Request, make_request
from explorer.traffic import Matter, matter_of
from hw.work import Family
from layouts.blocks import step_blocks
from layouts.models import load_model
from tests.helpers import PRESETS

DP16, DP2 = "attn_dp=16,ep=16", "attn_dp=2,dcp=8,ep=16"


@pytest.fixture(scope="module")
def request_() -> Request:
    # 12 requests a group under DP16, 96 under DP2
    return make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=192, verify_width=5)


@pytest.fixture(scope="module")
def found(request_: Request) -> Comparison:
    return compare(request_, request_.layout(DP16), request_.layout(DP2))


def row(found: Comparison, row_class: Class, name: str, unit: str) -> Row:
    (only,) = (r for r in found.of(row_class) if (r.name, r.unit) == (name, unit))
    return only


def test_state_of_requests_is_conserved(found: Comparison):
    """Claims K29 and K30: 16 x 96 = 128 x 12 heads and requests, and requests x tokens."""
    kv = row(found, Class.CONSERVED, "KV read: mla_decode", "bytes")
    assert kv.a == kv.b == 24 * 576 * 12 * 100_000
    state = row(found, Class.CONSERVED, "state read and written: kda_state", "bytes")
    assert state.a == state.b == 69 * 12 * 2 * 96 * 128 * 128 * 4
    assert all(r.difference == 0 and r.cause == "" for r in found.of(Class.CONSERVED))


def test_a_cache_copied_inside_its_group_is_not(request_: Request):
    """attn_tp 8 over dcp 4 keeps two copies of every token, and both are read."""
    result = compare(request_, request_.layout("attn_dp=2,dcp=4,ep=16"), request_.layout(DP2))
    kv = row(result, Class.CONSERVED, "KV read: mla_decode", "bytes")
    assert kv.a == 2 * kv.b
    assert kv.difference == kv.b - kv.a
    assert "dcp 4 / 8" in kv.cause or "kv_tokens" in kv.cause


def test_gathered_bytes_are_the_articles(found: Comparison):
    """Claims K03 and K04: what a rank receives in a step."""
    gathered = row(found, Class.MOVED, "weight gather beside it", "bytes")
    assert (gathered.a, gathered.b) == (48_411_181_056, 14_771_814_400)
    written = row(found, Class.NOT_CONSERVED, "staging written by the gather", "bytes")
    assert (written.a, written.b) == (gathered.a, gathered.b)
    assert "gathers_attention 1 / 0" in written.cause


def test_weights_are_read_again_on_every_card(found: Comparison):
    """Claim K31: DP16 reads and writes about 66 GB of weights more a card and step."""
    extra = [r for r in found.of(Class.NOT_CONSERVED) if r.name.startswith(("weights read", "staging written"))]
    assert -sum(r.difference for r in extra) == pytest.approx(66e9, rel=0.05)
    experts = row(found, Class.NOT_CONSERVED, "weights read: grouped_gemm_packed", "bytes")
    # every expert of a rank at most: 56 x 92 of 17,547,264 bytes
    assert experts.a == experts.b
    assert 0.99 < experts.a / (56 * 92 * 17_547_264) <= 1


def test_communication_moved_onto_the_critical_path(found: Comparison):
    """DCP exchanges on the path what weight sharding gathered beside it."""
    exchange = row(found, Class.MOVED, "on the critical path: dcp_exchange", "bytes")
    # 24 layers, 480 rows x 96 heads of 512 + 2 bf16 columns, 7/8 of them leave
    assert (exchange.a, exchange.b) == (0, 24 * 480 * 96 * 514 * 2 * 7 // 8)
    parts = [r for r in found.of(Class.MOVED) if r.name.startswith("on the critical path") and r.unit == "bytes"]
    total = row(found, Class.MOVED, "on the critical path: all exchanges", "bytes")
    assert total.a == pytest.approx(sum(r.a for r in parts) / 2)
    assert total.b > total.a


def test_time_by_kind_and_waits_are_the_step(found: Comparison):
    rows = [r for r in found.of(Class.TIME) if "stream" not in r.name and r.name != "step"]
    step = row(found, Class.TIME, "step", "s")
    assert sum(r.a for r in rows) == pytest.approx(step.a)
    assert sum(r.b for r in rows) == pytest.approx(step.b)


def test_memory_rows_are_both_ledgers(request_: Request, found: Comparison):
    first, second = (ledger(request_, request_.layout(text)) for text in (DP16, DP2))
    rows = {r.name: r for r in found.of(Class.MEMORY)}
    assert {name: r.a for name, r in rows.items() if name in first.by_name} == first.by_name
    assert {name: r.b for name, r in rows.items() if name in second.by_name} == second.by_name
    assert rows["req_to_token"].cause == "slots 13 / 97"
    assert "replicated_q 0 / 1" in rows["replicated Q projections"].cause


def test_a_layout_is_as_itself(request_: Request):
    layout = request_.layout(DP2)
    rows = compare(request_, layout, layout).rows
    assert all(r.difference == 0 for r in rows)
    assert not any(r.cause for r in rows)


@pytest.mark.parametrize("model", [*PRESETS, "kimi-k3@article"])
@pytest.mark.parametrize("prefill", [False, True])
def test_only_products_read_weights(model: str, prefill: bool):
    """What quantities tell apart agrees with what each kernel is: products read weights, the others requests' state."""
    products = {Family.GEMM, Family.GEMM_HEADS, Family.GROUPED_GEMM, Family.GROUPED_GEMM_PACKED}
    blocks = step_blocks(load_model(model), prefill).blocks
    kernels = [op for block in blocks for op in block.ops if op.family is not None]
    read = {(matter_of(op, powers), op.family in products) for op in kernels for powers, _ in op.bytes.terms}
    assert read >= {(Matter.WEIGHTS, True), (Matter.ACTIVATIONS, True), (Matter.ACTIVATIONS, False)}
    assert not read & {(Matter.WEIGHTS, False), (Matter.KV, True), (Matter.STATE, True)}


def test_document_is_the_schema(found: Comparison):
    document = found.document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "compare/1"
    assert document["a"]["layout_text"] == DP16
    assert {r["class"] for r in document["rows"]} == {"conserved", "not conserved", "moved", "time", "memory"}
    assert {"class", "name", "a", "b", "difference", "unit"} <= document["rows"][0].keys()
