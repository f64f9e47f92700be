"""The time of a step taken apart: every account of it must come to the same sum."""

import json

import numpy as np
import pytest

from explorer.costing import Cost, cost
from explorer.evaluate import Tables, evaluate_batch
from explorer.priced import priced
from explorer.request import Request, make_request
from hw.figures import Provenance
from layouts.cut import cuts_of
from layouts.op import Stream

LAYOUTS = (
    "attn_dp=16,ep=16",
    "attn_dp=2,dcp=8,ep=16",
    "pp=2,attn_dp=8,ep=8",
    "attn_dp=4,attn_tp=4,ep=16,weight_shard=1",
)


@pytest.fixture(scope="module")
def request_() -> Request:
    return make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=64, verify_width=5)


@pytest.fixture(scope="module")
def costs(request_: Request) -> dict[str, Cost]:
    tables = Tables(request_.model)
    return {text: cost(request_, request_.layout(text), tables) for text in LAYOUTS}


@pytest.mark.parametrize("text", LAYOUTS)
def test_every_account_of_the_step_comes_to_its_length(costs: dict[str, Cost], text: str):
    found = costs[text]
    step = found.step_seconds
    assert sum(s.seconds for s in found.critical_path) == pytest.approx(step, rel=1e-12)
    assert sum(s.share for s in found.critical_path) == pytest.approx(1.0)
    assert sum(s.exposed for s in found.streams.values()) == pytest.approx(step, rel=1e-12)
    assert all(s.busy + s.idle == pytest.approx(step) for s in found.streams.values())
    for stream in (Stream.MAIN, Stream.GATHER):
        spent = sum(op.seconds_total for op in found.ops if op.stream is stream)
        assert spent == pytest.approx(found.streams[stream].busy, rel=1e-9)


def test_step_is_that_of_the_batched_evaluation(request_: Request, costs: dict[str, Cost]):
    layouts = [request_.layout(text) for text in LAYOUTS]
    batch = evaluate_batch(Tables(request_.model), cuts_of(layouts), request_.case())
    found = [costs[text].step_seconds for text in LAYOUTS]
    np.testing.assert_allclose(found, np.asarray(batch.step), rtol=1e-9)


def test_ops_run_as_often_as_the_model_has_layers(costs: dict[str, Cost]):
    counts = {(op.name, op.layer_kind): op.count for op in costs["attn_dp=16,ep=16"].ops}
    # 93 layers: 24 MLA, 69 KDA of which the first is dense; layers 1-92 and the 5 draft layers are gathered
    assert counts["mla_decode", "MLA + LatentMoE"] == 24
    assert counts["kda_state", "KDA + LatentMoE"] == 68
    assert counts["kda_state", "KDA + dense"] == 1
    assert counts["weight_all_gather", "KDA + LatentMoE"] == 68
    assert counts["weight_all_gather", "draft GQA window + dense"] == 5
    assert ("weight_all_gather", "KDA + dense") not in counts


def test_ops_of_alternatives_not_taken_are_left_out(costs: dict[str, Cost]):
    with_dcp = {op.name for op in costs["attn_dp=2,dcp=8,ep=16"].ops}
    without = {op.name for op in costs["attn_dp=16,ep=16"].ops}
    assert "dcp_exchange" in with_dcp - without
    assert not with_dcp & {"q_all_gather", "dp_all_gather"}
    assert "weight_all_gather" not in {op.name for op in costs[LAYOUTS[3]].ops}


@pytest.mark.parametrize("text", LAYOUTS)
def test_timeline_obeys_the_two_buffers(costs: dict[str, Cost], text: str):
    """Replayed: a position starts when the one before it is done and its weights are there; a gather runs alone on its
    stream, into a buffer whose reader, two gathers before, is done."""
    before, readers, gathered = 0.0, [0.0, 0.0], 0.0
    for position in costs[text].timeline:
        ready = before
        if position.gather_start is not None and position.gather_end is not None:
            assert position.gather_start >= max(gathered, readers[-2]) - 1e-12
            gathered = position.gather_end
            ready = max(before, gathered)
            readers.append(position.end)
        assert position.start == pytest.approx(ready, abs=1e-12)
        before = position.end
    assert before == pytest.approx(costs[text].step_seconds)


def test_a_gather_is_issued_one_layer_ahead_and_the_drafts_first_is_hoisted(costs: dict[str, Cost]):
    """Layer 2's weights are asked for when layer 1 starts; the first draft layer's when the logits' turn comes."""
    positions = costs["attn_dp=16,ep=16"].timeline
    by_name = {p.name: p for p in positions}
    assert by_name["layer 2"].gather_start == pytest.approx(by_name["layer 1"].start)
    assert by_name["layer 1"].gather_start == pytest.approx(positions[0].start)
    drafted = next(p for p in positions if p.layer_kind.startswith("draft ") and p.gather_start is not None)
    assert drafted.gather_start == pytest.approx(by_name["layer 92"].start)
    assert drafted.start == pytest.approx(next(p for p in positions if p.name == "draft in").end)


def test_exposed_gather_is_the_wait_of_the_main_stream(costs: dict[str, Cost]):
    found = costs["attn_dp=16,ep=16"]
    waited = sum(b.start - a.end for a, b in zip(found.timeline, found.timeline[1:], strict=False))
    assert waited > 0
    assert found.streams[Stream.GATHER].exposed == pytest.approx(waited)


def test_range_encloses_the_step(costs: dict[str, Cost]):
    for found in costs.values():
        low, high = found.step_seconds_range
        assert 0.4 * found.step_seconds < low < found.step_seconds < high < 2 * found.step_seconds


def test_a_group_crosses_where_it_leaves_the_domain(request_: Request):
    found = priced(request_, request_.layout("attn_dp=2,dcp=8,ep=16"))
    crossing = {found.table.names[i] for i in range(found.kernels, len(found.table.names)) if found.crosses(i)}
    # 16 ranks of EP span two hosts of 8; DCP, attention TP and the vocabulary stay on one
    assert crossing == {
        "dispatch",
        "dispatch_numbers",
        "combine",
        "dp_all_gather",
        "dp_sum_gather",
        "moe_latent_all_reduce",
        "moe_shared_all_reduce",
    }


def test_host_work_is_the_critical_path_where_it_is_longer():
    request = make_request("llama-3.1-8b", "b300", 8, context=16)
    found = cost(request, request.layout("attn_dp=2"))
    assert [s.stream for s in found.critical_path] == [Stream.HOST]
    assert found.step_seconds == pytest.approx(3.07e-3)  # article 002
    host, main = found.streams[Stream.HOST], found.streams[Stream.MAIN]
    assert host.exposed == pytest.approx(3.07e-3 - main.busy)
    assert host.idle == 0
    assert main.idle > 0


def test_document_is_the_schema(costs: dict[str, Cost]):
    document = costs["attn_dp=2,dcp=8,ep=16"].document()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document
    assert document["schema"] == "cost/1"
    assert document["layout"]["dcp"] == 8
    assert document["layout_text"] == "attn_dp=2,dcp=8,ep=16"
    assert document["precision"]["experts"] == "mxfp4"
    assert set(document["versions"]) == {"meshwright", "jax", "python"}
    assert document["request"]["concurrency"] == 64
    assert set(document["streams"]) == {"main", "gather", "host"}
    assert document["ops"][0].keys() == {
        *("name", "layer_kind", "stream", "count", "seconds_each", "seconds_total", "bound", "provenance", "table")
    }
    assert {op["provenance"] for op in document["ops"]} <= set(Provenance)
    assert {op["bound"] for op in document["ops"]} <= {"latency", "memory", "compute", "link", "nic"}
