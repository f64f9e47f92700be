"""A step with table seconds in it: which ops are covered, and what becomes of step, streams and document."""

import pathlib

import numpy as np
import pytest

from explorer.costing import cost_of
from explorer.priced import Priced, priced
from explorer.report import cost as report
from explorer.request import make_request
from explorer.tabled import Tabled, tabled
from hw.figures import Provenance
from hw.tables import installed
from hw.tables.source import FOLDER_VARIABLE
from layouts.op import Stream
from tests.tables.tree import gemm_rows, write

# llama-3.1-8b, attn_tp = 2: q 2048 x 4096, kv 1024 x 4096, o 4096 x 2048, up 14336 x 4096, down 4096 x 7168
_SIZES = ([8, 16], [1024, 2048, 4096, 8192, 16384], [2048, 4096, 8192])
_GEMM = "h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet"
_PER = 0.3e-3 / 2**30  # seconds for each m x n x k: slower than the datasheet's 2 / 989e12 and what 3.35 TB/s allow


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def dense() -> Priced:
    request = make_request("llama-3.1-8b", "h100", 2, context=2048, concurrency=12)
    return priced(request, request.layout("attn_tp=2"))


def _places(found: Priced, name: str) -> list[int]:
    return [i for i, op in enumerate(found.table.names) if op == name]


def _with(found: Priced, folder: pathlib.Path, milliseconds: float) -> Tabled:
    write(folder, _GEMM, gemm_rows("bfloat16", milliseconds, *_SIZES))
    return tabled(found, installed("h100"))


def test_products_take_the_seconds_of_their_rows(dense: Priced, folder: pathlib.Path):
    found = _with(dense, folder, 300.0)
    products = {"q_proj": 2048 * 4096, "kv_proj": 1024 * 4096, "o_proj": 4096 * 2048, "down_proj": 4096 * 7168}
    products["gate_up_proj"] = 14336 * 4096
    for name, size in products.items():
        for i in _places(dense, name):
            assert found.parts.seconds[i] == pytest.approx(1e3 * _PER * 12 * size, rel=1e-6)
            assert found.sources[i] == f"{FOLDER_VARIABLE} op table gemm h100_sxm sglang 0.5.14, interpolated"
    covered = {found.table.names[i] for i in found.sources}
    assert covered == {*products}  # lm_head is wider than twice the table, and nothing else is a product
    others = [i for i in range(len(dense.table.names)) if i not in found.sources]
    np.testing.assert_allclose(found.parts.seconds[others], dense.parts.seconds[others], rtol=1e-12)


def test_the_step_is_laid_out_again(dense: Priced, folder: pathlib.Path):
    found = _with(dense, folder, 300.0)
    longer = (found.parts.seconds - dense.parts.seconds) * found.counts
    assert found.step == pytest.approx(dense.step + longer.sum(), rel=1e-9)
    assert found.step > dense.step  # no stream hides anything here
    assert found.held is dense.held
    assert sum(found.coverage.sources == (source,) for source in found.sources.values()) == found.coverage.covered


def test_only_what_is_not_measured_has_a_range(dense: Priced, folder: pathlib.Path):
    found = _with(dense, folder, 300.0)
    assert found.faster < found.step < found.slower
    assert found.slower - found.faster < dense.slower - dense.faster


def test_a_row_below_the_datasheet_is_another_problem(dense: Priced, folder: pathlib.Path):
    """q: 2048 x 4096 weights of 2 bytes take 5 us at 3.35 TB/s; the row says 1 us."""
    found = _with(dense, folder, 1e-6 / (12 * 2048 * 4096) * 2**30 * 1e3)
    assert not found.sources
    assert found.step == pytest.approx(dense.step, rel=1e-12)


def test_documents_and_tables_say_so(dense: Priced, folder: pathlib.Path):
    found = cost_of(_with(dense, folder, 300.0))
    q = next(op for op in found.ops if op.name == "q_proj")
    assert (q.provenance, q.stream) == (Provenance.MEASURED, Stream.MAIN)
    document = found.document()
    assert document["op_tables"]["engine"] == "sglang"
    assert document["op_tables"]["covered"] == 5
    running = sum(op.seconds_each > 1e-12 for op in found.ops)  # an exchange of one rank is nothing but rounding
    assert document["op_tables"]["ops"] == running
    spent = sum(op.seconds_total for op in found.ops if op.table is not None)
    assert document["op_tables"]["share"] == pytest.approx(spent / sum(op.seconds_total for op in found.ops))
    row = next(op for op in document["ops"] if op["name"] == "q_proj")
    assert report.provenance(row) == "measured, interpolated"
    other = next(op for op in document["ops"] if op["name"] == "gqa_decode")
    assert (other["table"], report.provenance(other)) == (None, other["provenance"])
    share = round(100 * document["op_tables"]["share"])
    [line] = report.coverage_line(document)
    assert line.plain == f"op tables of sglang cover 5 of {running} ops, {share} % of the work"
    assert cost_of(dense).document()["op_tables"] is None
    assert report.coverage_line(cost_of(dense).document()) == ()


def _expert_rows(milliseconds: float) -> list[dict[str, object]]:
    """qwen3-30b-a3b: 128 experts, top-8, 2048 wide, 768 inside."""
    same = {"moe_dtype": "fp8_block", "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    cut = {"moe_tp_size": 1, "moe_ep_size": 2, "distribution": "balanced"}
    skewed = {**same, **cut, "distribution": "power_law_1.01", "num_tokens": 512, "latency": 1e-3}
    return [skewed, *({**same, **cut, "num_tokens": n, "latency": milliseconds * n} for n in (256, 512))]


@pytest.mark.parametrize(
    ("layout", "concurrency", "covered"),
    [
        ("attn_tp=2,ep=2,dispatch=all_gather", 320, True),
        ("attn_tp=2,ep=2,dispatch=all_gather", 16, False),  # not all experts have rows: 16 x 8 choices of 128
        ("attn_tp=2,ep=2,dispatch=all_to_all", 320, False),  # rows travel to their experts
    ],
)
def test_one_row_times_all_that_the_routed_experts_do(
    folder: pathlib.Path, layout: str, concurrency: int, covered: bool
):
    write(folder, "h100_sxm/moe/sglang/1/moe_perf.parquet", _expert_rows(0.01))
    request = make_request("qwen3-30b-a3b-fp8", "h100", 2, context=1024, concurrency=concurrency)
    before = priced(request, request.layout(layout))
    found = tabled(before, installed("h100"))
    parts = [i for name in ("w13", "w2", "expert_activation") for i in _places(before, name)]
    assert ({*found.sources} == {*parts}) is covered
    if covered:
        assert found.parts.seconds[parts].sum() == pytest.approx(0.01e-3 * concurrency)
        share = before.parts.seconds[parts] / before.parts.seconds[parts].sum()
        np.testing.assert_allclose(found.parts.seconds[parts] / (0.01e-3 * concurrency), share)


def _exchanges(own: float, library: float, folder: pathlib.Path) -> None:
    rows = [{"op_name": "all_reduce", "num_gpus": 2, "message_size": 2**n} for n in range(10, 30)]
    place = "h100_sxm/comm/{}/1/{}.parquet"
    write(folder, place.format("sglang", "custom_allreduce_perf"), [{**r, "latency": own} for r in rows])
    timed = [{**r, "latency": library, "nccl_dtype": "int8"} for r in rows]
    write(folder, place.format("nccl", "nccl_perf"), timed)


@pytest.mark.parametrize(("own", "library"), [(0.02, 0.03), (0.03, 0.02)])
def test_an_all_reduce_is_the_faster_of_engine_and_library(
    dense: Priced, folder: pathlib.Path, own: float, library: float
):
    _exchanges(own, library, folder)
    found = tabled(dense, installed("h100"))
    reduces = _places(dense, "attention_all_reduce")
    assert {*reduces} <= {*found.sources}
    np.testing.assert_allclose(found.parts.seconds[reduces], 2e-5)


def test_what_leaves_the_scale_up_domain_or_stays_at_home_is_not_covered(folder: pathlib.Path):
    _exchanges(0.02, 0.03, folder)
    request = make_request("llama-3.1-8b", "h100", 2, context=2048, concurrency=12, gpus_per_host=1)
    assert not tabled(priced(request, request.layout("attn_tp=2")), installed("h100")).sources
    request = make_request("llama-3.1-8b", "h100", 1, context=2048, concurrency=12)
    assert not tabled(priced(request, request.layout("attn_tp=1")), installed("h100")).sources
