"""Runs beside predictions: against `explorer.serving`, which prices the same service another way, and by hand."""

import json
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.cli import main
from explorer.engines.bench.answer import Bench, Comparison, bench
from explorer.engines.bench.reading import read_results
from explorer.engines.bench.subject import Options
from explorer.engines.setup import Asked
from explorer.priced import priced
from explorer.request import Request, make_request
from explorer.service.engine import load_engine
from explorer.serving import make_engine, make_lengths, serve

RESULTS = pathlib.Path(__file__).with_name("results")
SGLANG: dict[str, Any] = json.loads((RESULTS / "bench.jsonl").read_text().splitlines()[0])
FORWARD: list[dict[str, Any]] = json.loads((RESULTS / "forward.json").read_text())
LAYOUT = "attn_tp=2"


def asked(**options: Any) -> Request:
    return make_request("llama-3.1-8b", "h200", 2, **options)


def stated(engine: str | None = None) -> Options:
    request = asked()
    return Options(Asked("h200"), request, request.layout(LAYOUT), engine)


def answered(folder: pathlib.Path, values: Any, options: Options | None) -> Bench:
    file = folder / "results.jsonl"
    file.write_text("\n".join(json.dumps(value) for value in values))
    return bench([read_results(file)], options)


def row(found: Bench, run: int, quantity: str) -> Comparison:
    (one,) = [c for c in found.comparisons if (c.run, c.quantity) == (run, quantity)]
    return one


def predicted(found: Bench, run: int, quantity: str) -> float:
    value = row(found, run, quantity).predicted
    assert value is not None
    return value


def test_clients_see_what_the_service_predicts() -> None:
    """16 clients of 1000 + 200 tokens, ten requests each."""
    found = bench([read_results(RESULTS / "bench.jsonl")], stated())
    request = asked(context=1100, concurrency=16)
    service = serve(request, request.layout(LAYOUT), make_engine("sglang"), make_lengths(1000, 200)).asked
    ttft, tpot, rate = (row(found, 0, name) for name in ("ttft", "tpot", "output_rate"))
    assert ttft.predicted == pytest.approx(service.ttft_seconds, rel=1e-3)
    assert (ttft.low, ttft.high) == pytest.approx(service.ttft_seconds_range, rel=1e-3)
    assert tpot.predicted == pytest.approx(service.tpot_seconds, rel=1e-3)
    # the service scales fixed times with the whole step, where these are those of the machine at its ends
    assert (tpot.low, tpot.high) == pytest.approx(service.tpot_seconds_range, rel=5e-3)
    assert rate.predicted == pytest.approx(service.tokens_per_second, rel=1e-3)
    assert found.runs[0].binding == service.binding
    assert found.document()["layout_text"] == "attn_dp=1"


def test_errors_and_ranges(tmp_path: pathlib.Path) -> None:
    """Measured as predicted, twice and a tenth of it; medians of the errors 0, -1/2 and 9 are 0 and 1/2."""
    first = row(answered(tmp_path, [SGLANG], stated()), 0, "tpot")
    assert first.predicted is not None and first.low is not None and first.high is not None
    ms = 1e3 * first.predicted
    found = answered(tmp_path, [SGLANG | {"mean_tpot_ms": ms * x} for x in (1.0, 2.0, 0.1)], stated())
    rows = [row(found, run, "tpot") for run in range(3)]
    assert [r.error for r in rows] == pytest.approx([0.0, -0.5, 9.0], abs=1e-9)
    assert [r.inside for r in rows] == [True, False, False]
    (errors,) = [e for e in found.document()["errors"] if e["quantity"] == "tpot"]
    assert (errors["comparisons"], errors["inside"]) == (3, 1)
    assert (errors["median"], errors["median_absolute"]) == pytest.approx((0.0, 0.5), abs=1e-9)


def test_a_forward_pass_is_a_graph_without_the_head(tmp_path: pathlib.Path) -> None:
    """Op by op: what is left of each op's fixed time in a graph, and the rest of it, without the last block."""
    found = answered(tmp_path, [FORWARD[0]], stated())
    step = priced(asked(context=8192, concurrency=32), asked().layout(LAYOUT))
    left = float(np.asarray(load_engine("vllm").fixed_share))
    seconds = step.parts.seconds - (1.0 - left) * np.asarray(step.parts.terms)[:, 0]
    body = np.array([step.table.block_names[block] != "tail" for block in step.table.block])
    assert predicted(found, 0, "forward") == pytest.approx(float((seconds * step.counts)[body].sum()), rel=0.02)
    assert (found.runs[0].binding or "").startswith("HBM bandwidth")


def test_chunks_of_a_prompt_take_as_long_as_the_prompt(tmp_path: pathlib.Path) -> None:
    """Four chunks of 2048, each of which sees those before it, against four of a chunk of 8192's mean sight."""
    ends = (2048, 4096, 6144, 8192)
    chunks = [FORWARD[2] | {"requests": [{"query_len": 2048, "kv_len": end, "chunked": True}]} for end in ends]
    found = answered(tmp_path, chunks, stated())
    each = [predicted(found, run, "forward") for run in range(4)]
    assert each == sorted(each)
    # time grows evenly with what is seen, so that the mean is that of the middle: keys up to 5120
    middle = FORWARD[2] | {"requests": [{"query_len": 2048, "kv_len": 5120, "chunked": True}]}
    whole = predicted(answered(tmp_path, [middle], stated()), 0, "forward")
    assert np.mean(each) == pytest.approx(whole, rel=0.01)
    request = asked(phase="prefill", context=8192, chunk=2048)
    # which is a step of that prompt but for the head, and fixed times that a graph saves
    step = priced(request, request.layout(LAYOUT)).step
    assert 0.9 * step < whole < step


def test_what_is_not_predicted_says_why(tmp_path: pathlib.Path) -> None:
    """Each stands as measured; a line that is cut off is named too."""
    drafted = FORWARD[0] | {"requests": [{"query_len": 4, "kv_len": 99, "num_draft_tokens": 3}]}
    several = FORWARD[2] | {"requests": FORWARD[2]["requests"] * 2}
    beside = FORWARD[0] | {"ranks": [{"timing_scope": "target_and_drafter"}]}
    values = [FORWARD[3], drafted, several, beside, SGLANG | {"accept_length": 2.5}]
    found = answered(
        tmp_path, [*values, SGLANG | {"request_rate": 2.0, "concurrency": None, "duration": None}], stated()
    )
    assert [seen.subject for seen in found.runs] == [None] * 6
    assert all(comparison.predicted is None for comparison in found.comparisons)
    notes = "\n".join(found.document()["notes"])
    for reason in (
        "line 1: not predicted: prompts beside answers",
        "line 2: not predicted: 4 rows of a request were verified, not 1: give --verify-width",
        "line 3: not predicted: several prompts that each continue",
        "line 4: not predicted: the model was timed beside its draft",
        "line 5: not predicted: 2.5 tokens were accepted a step: give --draft, and --verify-width 3",
        "line 6: not predicted: requests came at a rate",
    ):
        assert reason in notes


def test_a_batch_alone_and_behind_a_server() -> None:
    found = bench([read_results(RESULTS / "batch.jsonl")], stated())
    for run, names in enumerate((("prefill_step", "decode_step"), ("last_ttft", "tpot"))):
        assert [c.quantity for c in found.comparisons if c.run == run] == list(names)
    request = asked(context=1032, concurrency=16)
    service = serve(request, request.layout(LAYOUT), make_engine("sglang"), make_lengths(1024, 16)).asked
    assert predicted(found, 0, "decode_step") == pytest.approx(service.step_seconds, rel=1e-3)
    # 16,384 tokens: two full steps of 8,192 and the arrival, against one step of all
    assert predicted(found, 1, "last_ttft") > predicted(found, 0, "prefill_step")


def test_a_server_says_what_ran(tmp_path: pathlib.Path) -> None:
    """Two GPUs with heads over both, as the options of the other tests say it, at SGLang's own chunk."""
    said = bench([read_results(RESULTS / "bench.jsonl")], Options(Asked("h200")))
    (subject,) = said.document()["subjects"]
    assert (subject["source"], subject["model"], subject["gpus"]) == ("server_info", "llama-3.1-8b", 2)
    assert (subject["engine"], subject["engine_version"], subject["chunk"]) == ("sglang", "0.5.23", 8192)
    assert (subject["layout"]["attn_tp"], subject["layout"]["attn_dp"]) == (2, 1)
    told = bench([read_results(RESULTS / "bench.jsonl")], stated())
    for mine, other in zip(said.comparisons, told.comparisons, strict=True):
        assert mine.predicted == pytest.approx(other.predicted, rel=1e-6)
    limited = SGLANG | {"server_info": SGLANG["server_info"] | {"max_running_requests": 4}}
    bound = answered(tmp_path, [limited], Options(Asked("h200")))
    assert bound.runs[0].binding == "max_running_requests"
    assert predicted(bound, 0, "ttft") > 2 * predicted(said, 0, "ttft")


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (None, "does not say what ran (server_info): give --model, --gpus and --layout"),
        ({"tp_size": 2, "model_path": "/etc/passwd"}, "ran '/etc/passwd', which is no preset: name one with --model"),
        ({"prefill": [{}], "decode": [{"version": "1"}]}, "prompts ran on GPUs of their own"),
        ({"tp_size": 2, "model_path": "Llama-3.1-8B", "disaggregation_mode": "decode"}, "prompts ran on GPUs of"),
        ({"x": 1}, "server_info names neither model_path nor tp_size"),
    ],
)
def test_a_server_that_does_not_say_what_ran(info: Any, reason: str, tmp_path: pathlib.Path) -> None:
    found = answered(tmp_path, [SGLANG | {"server_info": info}], Options(Asked("h200")))
    assert found.runs[0].subject is None
    assert reason in (found.runs[0].reason or "")


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(RESULTS / "bench.jsonl")
    assert main(["bench", file]) == 0
    seen = capsys.readouterr()
    assert "16 x 1000 + 200" in seen.out and "give --hardware" in seen.err
    assert main(["bench", file, "--hardware", "h200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "bench/1" and document["errors"]
    for options, error in (
        (["--layout", LAYOUT], "--hardware is missing"),
        (["--hardware", "h200", "--layout", LAYOUT], "--model is missing"),
        (["--hardware", "h200", "--model", "llama-3.1-8b", "--gpus", "2"], "--layout is missing"),
        (["--hardware", "h200", "--engine", "vlm"], "unknown engine 'vlm'"),
    ):
        assert main(["bench", file, *options]) == 2
        assert error in capsys.readouterr().err
    assert main(["bench", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_options_stand_in_for_a_name_that_is_no_preset(tmp_path: pathlib.Path) -> None:
    info = SGLANG["server_info"] | {"model_path": "/data/ours"}
    options = Options(replace(Asked("h200"), model="llama-3.1-8b"))
    assert answered(tmp_path, [SGLANG | {"server_info": info}], options).runs[0].subject == 0
