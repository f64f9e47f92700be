"""What clients of a layout see: the answer, its document and its tables, and what the command refuses."""

import json
import shlex
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import explorer
from explorer.cli import main, session
from explorer.fidelity.runs import Pool, Run
from explorer.report.service import draw
from explorer.request import Request
from explorer.service.engine import ANY, load_engine
from explorer.service.ladder import RUNGS, concurrencies
from explorer.service.predict import predict
from explorer.serving import KV, POOL, PREFILL, STEP, Service
from hw.errors import MeshwrightError

ASKED = ("llama-3.1-8b", "h100", 2, "attn_tp=2")
COMMAND = (
    "service --model llama-3.1-8b --hardware h100 --gpus 2 --input-tokens 1000 --output-tokens 200 --concurrency 6"
)


def serve(input_tokens: int = 1000, output_tokens: int = 200, **options: Any) -> Service:
    asked: dict[str, Any] = {"concurrency": 6, "engine": "sglang", **options}
    return explorer.serve(*ASKED, input_tokens, output_tokens, **asked)


def test_a_ladder_of_powers_of_two_and_what_was_asked() -> None:
    assert concurrencies(1) == (1,)
    assert concurrencies(8) == (1, 2, 4, 8)
    assert concurrencies(9) == (1, 2, 4, 8, 9)
    assert len(concurrencies(2**14 * 2**12)) <= RUNGS
    assert [load.concurrency for load in serve().loads] == [1, 2, 4, 6]


@pytest.mark.parametrize("shortest", [1.0, 0.8])
def test_each_rung_is_the_prediction_of_such_a_run(shortest: float) -> None:
    """The queue at one concurrency alone, with its ranges, as the scoreboard has it."""
    found = serve(shortest=shortest, precision="kv=fp8", draft="none")
    for load in found.loads:
        run = Run(
            *("a", "f", "llama-3.1-8b", "L", "h100"), engine="sglang", concurrency=load.concurrency, kv="fp8",
            pool=Pool(1, 2), input_tokens=1000, output_tokens=200, shortest=shortest,
        )  # fmt: skip
        one = predict(run)
        assert load.ttft_seconds == pytest.approx(one["ttft"].value, rel=1e-9)
        assert load.tpot_seconds_range == pytest.approx((one["tpot"].low, one["tpot"].high), rel=1e-9)
        assert load.step_seconds == pytest.approx(one["step"].value, rel=1e-9)
        rate = one["tokens_per_second_per_gpu"].value
        assert load.tokens_per_second_per_gpu == pytest.approx(rate, rel=1e-9)
        assert load.tokens_per_second == pytest.approx(2 * rate, rel=1e-9)
    assert found.asked is found.loads[-1] and found.gpus == 2


def test_prompts_on_gpus_of_their_own_are_such_a_run() -> None:
    pools: dict[str, Any] = {
        "prefill_layout": "attn_tp=1",
        "prefill_gpus": 1,
        "prefill_workers": 3,
        "decode_workers": 2,
    }
    found = serve(precision="kv=fp8", draft="none", **pools)
    run = Run(
        *("a", "f", "llama-3.1-8b", "L", "h100"), engine="sglang", concurrency=6, kv="fp8", mode="disagg",
        prefill=Pool(3, 1), decode=Pool(2, 2), input_tokens=1000, output_tokens=200,
    )  # fmt: skip
    one = predict(run)
    assert found.gpus == run.gpus == 7
    assert found.asked.ttft_seconds_range == pytest.approx((one["ttft"].low, one["ttft"].high), rel=1e-9)
    assert found.asked.tokens_per_second_per_gpu == pytest.approx(one["tokens_per_second_per_gpu"].value, rel=1e-9)
    assert 0 < found.asked.running < 6 == found.asked.running + found.asked.waiting


@pytest.mark.parametrize(
    ("options", "binding"),
    [
        ({}, STEP),
        ({"input_tokens": 30000, "output_tokens": 8, "concurrency": 4}, PREFILL),
        ({"input_tokens": 100_000, "output_tokens": 20_000, "concurrency": 64}, KV),
        ({"prefill_layout": "attn_tp=2", "output_tokens": 1, "input_tokens": 8000, "concurrency": 64}, POOL),
        ({"prefill_layout": "attn_tp=2", "input_tokens": 60_000, "output_tokens": 60_000, "concurrency": 256}, KV),
        ({"prefill_layout": "attn_tp=2"}, STEP),
    ],
)
def test_what_binds_has_a_name(options: dict[str, Any], binding: str) -> None:
    found = serve(**options)
    assert found.asked.binding == binding
    assert found.loads[0].binding in (STEP, PREFILL)  # a client alone waits for no other
    if binding == KV:
        assert found.asked.running == pytest.approx(found.capacity, rel=2e-3)


def test_replicas_share_the_clients() -> None:
    two = explorer.serve("llama-3.1-8b", "h100", 4, "replicas=2,attn_tp=2", 1000, 200, engine="sglang", concurrency=12)
    one = serve()
    assert two.asked.ttft_seconds == pytest.approx(one.asked.ttft_seconds)
    assert two.asked.tokens_per_second == pytest.approx(2 * one.asked.tokens_per_second)
    assert two.asked.tokens_per_second_per_gpu == pytest.approx(one.asked.tokens_per_second_per_gpu)
    assert two.capacity == 2 * one.capacity and two.asked.running == 12


def test_a_chunk_of_one_s_own() -> None:
    assert serve(chunk=256).asked.ttft_seconds > serve().asked.ttft_seconds
    assert serve(chunk=256).document()["engine"]["chunk"] == serve(chunk=256).document()["request"]["chunk"] == 256
    assert serve(chunk=load_engine("sglang").chunk).loads == serve().loads


def test_a_context_beside_the_lengths() -> None:
    """Left out it is prompt and half of the answer, on average; with more behind the prompt steps take longer."""
    assert serve(shortest=0.8).request.context == 900 + 90
    longer = serve(context=100_000)
    assert longer.request.context == 100_000 and longer.asked.step_seconds > serve().asked.step_seconds


def test_notes_say_what_was_assumed() -> None:
    cut = explorer.serve("deepseek-v3", "h200", 16, "attn_tp=16,dcp=16,ep=16", 1000, 200, concurrency=2)
    notes = cut.document()["notes"]
    assert any("without dcp=16" in note for note in notes) and any(note.startswith("engine other") for note in notes)
    assert [row["provenance"] for row in cut.document()["parameters"]] == ["assumed"] * 8
    assert not any("dcp" in note or "engine" in note for note in serve().document()["notes"])
    assert cut.engine.name == ANY


@pytest.mark.parametrize("width", [60, 100, 160])
def test_tables_hold_the_figures_and_fit(width: int) -> None:
    document = serve(prefill_layout="attn_tp=2", prefill_workers=2).document()
    console = Console(width=width, record=True, highlight=False)
    with console.capture() as captured:
        console.print(draw(document))
    text = captured.get()
    assert max(map(len, text.splitlines())) <= width
    asked = document["loads"][-1]
    for figure in (f"{asked['ttft_seconds'] * 1e3:,.1f}", f"{asked['tpot_seconds'] * 1e3:.2f}", asked["binding"]):
        assert figure in text
    assert "prefill workers: 2 of 2 x h100" in text and "arrival" in text
    assert ("fitted" in text) == (width > 60)


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


def test_the_command_prints_what_the_function_answers(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"{COMMAND} --engine sglang --layout attn_tp=2 --json", capsys)
    assert (status, err) == (0, "")
    assert json.loads(out) == serve().document()
    status, out, _ = run(f"{COMMAND} --engine trtllm --layout attn_tp=2 --decode-workers 2 --shortest 0.5", capsys)
    assert status == 0 and "decode workers: 2; prefill workers: 1 of 2 x h100" in out
    assert "drawn evenly from 0.5" in out and "mixed" in out


def test_without_a_layout_the_best_one_serves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of either kind of worker, planned for its own phase, GPUs and length."""
    asked = []

    def planned(request: Request) -> dict[str, Any]:
        asked.append((str(request.phase), request.gpus, request.context, request.concurrency))
        return {"best": {"layout_text": f"attn_dp={request.gpus}"}}

    monkeypatch.setattr(session, "planned", planned)
    status, out, err = run(f"{COMMAND} --json --prefill-gpus 4", capsys)
    found = json.loads(out)
    assert asked == [("decode", 2, 1100, 6), ("prefill", 4, 1000, 6)]
    assert (status, found["layout_text"], found["prefill_pool"]["layout_text"]) == (0, "attn_dp=2", "attn_dp=4")
    assert err.count("no --layout given") == 2


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ("--engine vlm", "nearest is 'vllm'"),
        ("--phase prefill", "leave phase out"),
        ("--concurrency 0", "concurrency"),
        ("--concurrency 16385", "lower it"),
        ("--shortest 0", "more than 0"),
        ("--shortest nan", "no share"),
        ("--input-tokens 0", "input-tokens = 0"),
        ("--output-tokens 0", "output-tokens = 0"),
        ("--output-tokens 130500", "exceeds the 131072 positions"),
        ("--chunk 0", "chunk = 0"),
        ("--context 0", "context = 0"),
        ("--layout attn_tp=3", "not the 2 GPUs"),
        ("--prefill-layout attn_tp=4", "not the 2 GPUs"),
        ("--prefill-gpus 0", "prefill-gpus = 0"),
        ("--prefill-workers 0", "prefill-workers = 0"),
        ("--decode-workers 9999", "decode-workers = 9999"),
        ("--model llama-3.1-70b --gpus 1 --layout attn_tp=1", "no request of 1100 tokens fits"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options: str, mentions: str, capsys: pytest.CaptureFixture[str]) -> None:
    stated = "" if "--layout" in options else " --layout attn_tp=2"
    status, out, err = run(f"{COMMAND}{stated} {options}", capsys)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and mentions in err


def test_a_concurrency_must_be_stated(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(COMMAND.replace(" --concurrency 6", ""), capsys)
    assert status == 2 and "--concurrency is missing" in err
    status, _, err = run(COMMAND.replace(" --input-tokens 1000", ""), capsys)
    assert status == 2 and "--input-tokens" in err
    with pytest.raises(MeshwrightError, match="concurrency is missing"):
        serve(concurrency=None, objective="throughput")


def test_ranges_are_around_the_figures() -> None:
    for load in serve().loads:
        for value, (low, high) in (
            (load.ttft_seconds, load.ttft_seconds_range),
            (load.tpot_seconds, load.tpot_seconds_range),
        ):
            assert 0 < low < value < high < np.inf
