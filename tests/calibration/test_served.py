"""Results of benchmark clients as observations, and which of the curves and the engine they move."""

import json
import pathlib
from typing import Any

import equinox as eqx
import numpy as np
import pytest

from explorer.calibration.answer import calibrate
from explorer.calibration.observed import CalibrationError
from explorer.calibration.served import ServedRuns, read_served
from explorer.calibration.solve import predicted_seconds
from explorer.calibration.sources import Ran, read_source
from explorer.cli import main
from explorer.request import Request, make_request
from explorer.service.engine import load_engine
from explorer.service.queue import Clients, aggregated
from explorer.service.steps import steps
from hw.compat import x64
from hw.errors import MeshwrightError
from hw.work import FAMILIES, Family

LAYOUT = "attn_tp=2"
# sglang's client: 100 requests of 1000 + 200 tokens, 16 at once.
RUN: dict[str, Any] = {
    "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 16, "random_range_ratio": 0.5,
    "completed": 160, "total_input_tokens": 160000, "total_output_tokens": 32000,
    "mean_ttft_ms": 250.0, "mean_tpot_ms": 9.0,
}  # fmt: skip


def asked() -> Request:
    return make_request("llama-3.1-8b", "h200", 2, context=1100)


def read(folder: pathlib.Path, *runs: Any, name: str = "bench.jsonl", engine: str | None = None) -> list[ServedRuns]:
    path = folder / name
    path.write_text("\n".join(json.dumps(run) for run in runs))
    request = asked()
    return read_served(path, request, request.layout(LAYOUT), engine)


def at(clients: int, **changed: Any) -> dict[str, Any]:
    """The same with as many clients, each of whom asks ten times; prompts of 4000 tokens."""
    counts = {"completed": 10, "total_input_tokens": 40000, "total_output_tokens": 2000}
    return RUN | {name: count * clients for name, count in counts.items()} | {"max_concurrency": clients} | changed


THREE = (at(4), at(32), at(128, mean_ttft_ms=None))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> ServedRuns:
    return read(tmp_path_factory.mktemp("three"), *THREE)[0]


def test_runs_are_predicted_as_the_service_predicts_them(seen: ServedRuns) -> None:
    """The queue of `explorer.service` over its own steps, at the same loads."""
    assert seen.names == (
        *("4 x 4000 + 200: TPOT", "32 x 4000 + 200: TPOT", "128 x 4000 + 200: TPOT"),
        *("4 x 4000 + 200: TTFT", "32 x 4000 + 200: TTFT"),
    )
    np.testing.assert_allclose(seen.seconds, [9e-3, 9e-3, 9e-3, 0.25, 0.25])
    request, engine = asked(), load_engine("sglang")
    layout = request.layout(LAYOUT)
    decode = steps(request, layout, seen.decode.loads, 4100.0)
    prompts = make_request("llama-3.1-8b", "h200", 2, context=4000, phase="prefill")
    prefill = steps(prompts, layout, seen.prefill.loads, 4000.0)
    found = predicted_seconds(request.machine, [seen])
    with x64():
        for count, places in ((4.0, [0, 3]), (32.0, [1, 4]), (128.0, [2])):
            # lengths from half of the longest to the longest: (1 - 1/2) / ((1 + 1/2) / 2) of their mean apart
            clients = Clients(count, 4000.0, 200.0, 1.0, 2.0 / 3.0, rounds=10)
            expected = aggregated(engine, clients, decode, prefill)
            np.testing.assert_allclose(found[places], [expected.tpot, expected.ttft][: len(places)], rtol=1e-6)


def test_what_was_only_assumed_takes_what_runs_say(seen: ServedRuns) -> None:
    """Three runs of a machine whose attention reads its cache half as fast: the GEMMs, which tables know well, stay;
    the engine might have been the cause, and takes a part; kernels that did not run are not mentioned."""
    machine, attention = asked().machine, FAMILIES.index(Family.ATTENTION_HEADS)
    assert machine.figure("attention_heads.bandwidth_efficiency.bf16").provenance == "assumed"
    with x64():
        column = machine.curves.bandwidth_efficiency.at[attention].multiply(0.5)
        slow = eqx.tree_at(lambda m: m.curves.bandwidth_efficiency, machine, column)
    found = calibrate(machine, [eqx.tree_at(lambda s: s.seconds, seen, predicted_seconds(slow, [seen]))])
    moved = {change.figure: change.ratio for change in found.figures}
    assert min(moved, key=lambda figure: moved[figure]) == "attention_heads.bandwidth_efficiency.bf16"
    assert 0.5 < moved["attention_heads.bandwidth_efficiency.bf16"] < 0.75
    assert moved["gemm.bandwidth_efficiency.bf16"] == pytest.approx(1.0, abs=0.02)
    assert found.engine is not None and 1.0 < found.engine.factor < 1.3
    tpot = [(abs(o.before / o.measured - 1), abs(o.after / o.measured - 1)) for o in found.observations[:3]]
    assert max(after for _, after in tpot) < 0.6 * max(before for before, _ in tpot)
    assert not any(figure.startswith("grouped_gemm") for figure in moved)


def test_results_of_several_engines_and_clients(tmp_path: pathlib.Path) -> None:
    both = read(tmp_path, RUN, RUN | {"backend": "vllm", "request_rate": "inf"}, RUN | {"backend": "openai-chat"})
    assert [seen.format for seen in both] == ["sglang results", "vllm results", "openai-chat results"]
    named = read(tmp_path, RUN | {"backend": "openai-chat"}, name="one.json", engine="vllm")
    assert [seen.format for seen in named] == ["vllm results"]
    with pytest.raises(MeshwrightError, match="unknown engine 'vlm': nearest is 'vllm'"):
        read(tmp_path, RUN, engine="vlm")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"max_concurrency": None}, "max_concurrency = None: must be a number above 0"),
        ({"mean_tpot_ms": float("nan")}, "mean_tpot_ms = nan"),
        ({"completed": 0}, "completed = 0"),
        ({"request_rate": 4.0}, "request_rate = 4.0: clients must wait for answers only"),
        ({"total_output_tokens": 160}, "answers of one token"),
    ],
)
def test_a_run_that_says_nothing_is_left_out_with_its_reason(
    changed: dict[str, Any], reason: str, tmp_path: pathlib.Path
) -> None:
    (seen,) = read(tmp_path, RUN | changed, RUN)
    assert len(seen.names) == 2
    assert len(seen.left_out) == 1 and seen.left_out[0].startswith(f"run 0: {reason}")
    with pytest.raises(CalibrationError, match=f"bench.jsonl: no run can be used: run 0: {reason}"):
        read(tmp_path, RUN | changed)


def test_a_file_is_told_by_what_it_holds(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RUN, indent=1))
    request = asked()
    (seen,) = read_source(path, request.machine, Ran(request, request.layout(LAYOUT)))
    assert seen.format == "sglang results"
    (tmp_path / "cut.jsonl").write_text(json.dumps(RUN)[:-9])
    ask = f"calibrate --hardware h200 --model llama-3.1-8b --gpus 2 --layout {LAYOUT} --dry-run --from"
    assert main([*ask.split(), str(tmp_path / "cut.jsonl")]) == 2
    assert "cut.jsonl is no JSON" in capsys.readouterr().err
    (tmp_path / "bench.jsonl").write_text("\n".join(json.dumps(run) for run in THREE))
    assert main([*ask.split(), str(tmp_path / "bench.jsonl"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["engine"]) == {"factor", "pull"}
    assert [s["format"] for s in document["sources"]] == ["sglang results"]
