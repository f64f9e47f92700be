"""Results of benchmark clients read into runs. The files in `results` are made up: their fields are those that
SGLang 0.5.23 and vLLM 0.33.0 write (`explorer.engines.bench.clients` names the modules)."""

import json
import math
import pathlib
import re
import tempfile
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engines.bench import values as scanning
from explorer.engines.bench.reading import MOST_RUNS, Results, read_results
from explorer.engines.bench.run import BatchRun, ForwardRun, ServeRun, Times
from explorer.engines.bench.values import MOST_KEPT, BenchError

RESULTS = pathlib.Path(__file__).with_name("results")
SGLANG: dict[str, Any] = json.loads((RESULTS / "bench.jsonl").read_text().splitlines()[0])
VLLM: dict[str, Any] = json.loads((RESULTS / "serve.json").read_text())
FORWARD: list[dict[str, Any]] = json.loads((RESULTS / "forward.json").read_text())
BATCH, BATCH_SERVER = map(json.loads, (RESULTS / "batch.jsonl").read_text().splitlines())


def written(folder: pathlib.Path, text: str | bytes, name: str = "results.jsonl") -> Results:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_results(file)


def served(folder: pathlib.Path, fields: dict[str, Any]) -> ServeRun:
    (run,) = written(folder, json.dumps(fields)).runs
    assert isinstance(run, ServeRun)
    return run


def reasons(results: Results) -> list[tuple[int, str]]:
    return [(value.line, value.reason) for value in results.left_out]


@pytest.mark.smoke
def test_runs_of_sglang() -> None:
    results = read_results(RESULTS / "bench.jsonl")
    first, second, third = results.runs
    assert not results.left_out
    assert isinstance(first, ServeRun) and isinstance(second, ServeRun) and isinstance(third, ServeRun)
    assert (first.input_tokens, first.output_tokens, first.shortest) == (1000, 200, 1.0)
    assert (first.request_rate, first.max_concurrency, first.concurrency) == (math.inf, 16, 16)
    assert (first.completed, first.duration) == (160, 21.0)
    assert first.ttft == Times(0.25, 0.21, 0.9)
    assert first.tpot == Times(0.009, 0.0089, 0.012)
    assert first.itl == Times(0.0091, 0.007, 0.031)
    assert first.rate == pytest.approx(32000 / 21)
    assert first.accept_length is None
    assert (second.input_tokens, second.output_tokens, second.shortest) == (750, 150, 0.5)
    # at a rate, and without a limit: as many in flight as the client counted
    assert (third.request_rate, third.max_concurrency, third.concurrency) == (4.0, None, 6.4)
    origin = first.origin
    assert (origin.index, origin.line, third.origin.line) == (0, 1, 3)
    assert (origin.backend, origin.engine_version, origin.model) == ("sglang", "0.5.23", "meta-llama/Llama-3.1-8B")
    assert origin.server_info == SGLANG["server_info"]
    assert origin.date is None


def test_a_run_of_vllm() -> None:
    (run,) = read_results(RESULTS / "serve.json").runs
    assert isinstance(run, ServeRun)
    assert (run.concurrency, run.input_tokens, run.output_tokens, run.rate) == (32, 1000, 200, 1600.0)
    assert (run.ttft, run.tpot.mean) == (Times(0.3, 0.28, 0.95), 0.0185)
    assert run.shortest is None
    assert (run.origin.model, run.origin.date) == ("meta-llama/Llama-3.1-8B", "2026-11-01")
    assert run.origin.server_info is None


@pytest.mark.smoke
def test_forward_passes() -> None:
    decode, prefill, chunk, mix = read_results(RESULTS / "forward.json").runs
    assert isinstance(decode, ForwardRun) and isinstance(prefill, ForwardRun)
    assert isinstance(chunk, ForwardRun) and isinstance(mix, ForwardRun)
    assert (decode.name, decode.rows, decode.context) == ("decode", (1,) * 32, (8192,) * 32)
    assert (decode.ranks, decode.drafter, decode.seconds) == (2, False, pytest.approx(5.6e-3))
    assert [run.prefill for run in (decode, prefill, chunk, mix)] == [False, True, True, True]
    assert [run.mixed for run in (decode, prefill, chunk, mix)] == [False, False, False, True]


def test_verified_drafts_are_a_decode_step(tmp_path: pathlib.Path) -> None:
    requests = [{"query_len": 4, "kv_len": 4096, "num_draft_tokens": 3, "chunked": False}]
    (run,) = written(tmp_path, json.dumps([FORWARD[0] | {"requests": requests}])).runs
    assert isinstance(run, ForwardRun)
    assert (run.rows, run.drafts, run.prefill) == ((4,), (3,), False)


def test_batches() -> None:
    alone, behind = read_results(RESULTS / "batch.jsonl").runs
    assert isinstance(alone, BatchRun) and isinstance(behind, BatchRun)
    assert (alone.served, alone.batch, alone.input_tokens, alone.output_tokens) == (False, 16, 1024, 16)
    assert (alone.prefill, alone.step) == (0.21, 0.0045)
    # 0.62 s in all, the last first token after 0.5 s, 16 tokens of each after it
    assert (behind.served, behind.prefill, behind.accept_length) == (True, 0.5, None)
    assert behind.step == pytest.approx(0.12 / 16)


@pytest.mark.parametrize(
    ("fields", "shortest"),
    [
        (SGLANG | {"random_range_ratio": 0.25}, 0.25),
        (SGLANG | {"dataset_name": "sharegpt", "random_range_ratio": 0.0}, None),
        (VLLM | {"random_range_ratio": "0.5"}, 1 / 3),
        (VLLM | {"random_range_ratio": 1e999}, None),
    ],
)
def test_lengths_are_drawn_as_each_client_draws_them(
    fields: dict[str, Any], shortest: float | None, tmp_path: pathlib.Path
) -> None:
    """SGLang: from r x longest up. vLLM: (1 - r) to (1 + r) times the mean, which a sweep's file says."""
    assert served(tmp_path, fields).shortest == (None if shortest is None else pytest.approx(shortest))


def test_requests_in_flight(tmp_path: pathlib.Path) -> None:
    """The limit, all at once without one, or Little's law: 320 requests of 2.5 s in 40 s are 20 at a time."""
    assert served(tmp_path, VLLM | {"max_concurrency": None}).concurrency == 320
    assert served(tmp_path, VLLM | {"max_concurrency": 1000}).concurrency == 320
    assert served(tmp_path, VLLM | {"request_rate": 8.0}).concurrency is None
    assert served(tmp_path, VLLM | {"request_rate": 8.0, "mean_e2el_ms": 2500.0}).concurrency == pytest.approx(20.0)
    trace = served(tmp_path, SGLANG | {"request_rate": "trace"})
    assert (trace.request_rate, trace.concurrency) == (None, 15.6)


def test_accepted_tokens(tmp_path: pathlib.Path) -> None:
    assert served(tmp_path, SGLANG | {"accept_length": 2.9}).accept_length == 2.9
    assert served(tmp_path, VLLM | {"spec_decode_acceptance_length": 1.8}).accept_length == 1.8


def test_answers_of_one_token(tmp_path: pathlib.Path) -> None:
    run = served(tmp_path, SGLANG | {"total_output_tokens": 160, "mean_tpot_ms": 0.0})
    assert run.tpot.mean is None and run.ttft.mean == 0.25


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(VLLM) + "\n" + json.dumps(VLLM),  # --append-result
        json.dumps([VLLM | {"run_number": n} for n in range(2)], indent=4),  # summary.json of a sweep
        json.dumps(VLLM, indent=4) + "\n" + json.dumps(VLLM, indent=1),
        json.dumps(VLLM) + json.dumps(VLLM),
        "[\n" + ",\n".join([json.dumps(VLLM)] * 2) + "\n]\n",
        "\ufeff\r\n" + json.dumps(VLLM) + "\r\n\r\n" + json.dumps(VLLM) + "\r\n",
    ],
)
def test_however_runs_follow_each_other(text: str, tmp_path: pathlib.Path) -> None:
    results = written(tmp_path, text)
    assert len(results.runs) == 2 and not results.left_out


def test_a_line_that_is_cut_off_loses_nothing_else(tmp_path: pathlib.Path) -> None:
    line = json.dumps(SGLANG)
    results = written(tmp_path, f"{line}\n{line[:700]}\n{line}\nnoise\n{line[:-300]}")
    assert [run.origin.line for run in results.runs] == [1, 3]
    assert [run.origin.index for run in results.runs] == [0, 2]
    (cut, why), (noise, what), (last, _) = reasons(results)
    assert (cut, noise, last) == (2, 4, 5)
    assert why.startswith("is cut off") and what.startswith("is no JSON")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (SGLANG | {"mean_tpot_ms": math.nan}, "mean_tpot_ms = nan: must be a number above 0"),
        (SGLANG | {"mean_tpot_ms": None}, "mean_tpot_ms = None"),
        (SGLANG | {"median_ttft_ms": -3.0}, "median_ttft_ms = -3.0"),
        (SGLANG | {"total_input_tokens": "many"}, "total_input_tokens = 'many'"),
        (SGLANG | {"completed": True}, "completed = True"),
        (SGLANG | {"completed": 2.5}, "completed = 2.5: must be a whole number"),
        (SGLANG | {"duration": 1e300}, r"duration = 1e\+300"),
        (SGLANG | {"request_rate": -1}, "request_rate = -1"),
        ({"completed": 3}, "total_input_tokens = None: must be a number above 0, as the client writes it"),
        (BATCH | {"batch_size": 0}, "batch_size = 0"),
        (BATCH_SERVER | {"acc_length": -2.0}, "acc_length = -2.0"),
        (FORWARD[0] | {"requests": [3]}, "requests: each must be an object"),
        (FORWARD[0] | {"requests": []}, "requests = list: must be a list"),
        (FORWARD[0] | {"requests": [{"query_len": 0, "kv_len": 9}]}, "query_len = 0"),
        (FORWARD[0] | {"median_us": None}, "median_us = None"),
        ({"avg_latency": 1.0, "model_id": "m"}, "vllm bench latency writes neither batch size nor lengths: run"),
        ({"elapsed_time": 1.0, "tokens_per_second": 2.0}, "vllm bench throughput writes prompts and answers in one"),
        ({"benchmark": {}, "model": {}, "metric": {}}, "a record for PyTorch's dashboard"),
        ({"x": 1}, "holds none of the fields of a benchmark"),
        ([], "is no object"),
    ],
)
def test_what_is_no_run_is_named(fields: Any, reason: str, tmp_path: pathlib.Path) -> None:
    results = written(tmp_path, json.dumps(SGLANG) + "\n" + json.dumps(fields))
    assert len(results.runs) == 1
    ((line, found),) = reasons(results)
    assert line == 2 and "\n" not in found
    assert re.match(reason, found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is no JSON: it is empty"),
        (bytes(range(256)) * 400, "is no JSON"),
        (json.dumps(SGLANG)[:-20], "is no JSON: line 1 is cut off"),
        ("[" * 1_000_000, "is no JSON: line 1 is nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", "is no JSON: line 1 is no JSON"),
        ('{"completed": 1}\n' * (MOST_RUNS + 2), "holds more than 1024 values: split it"),
        ('{"server_info": {"x": "' + "y" * (MOST_KEPT + 1) + '"}}', "is larger than 8 MiB"),
    ],
)
def test_files_that_hold_nothing(text: str | bytes, error: str, tmp_path: pathlib.Path) -> None:
    try:
        results = written(tmp_path, text)
    except BenchError as found:
        message = str(found)
    else:
        assert not results.runs
        message = results.left_out[0].reason
    assert error in message and "\n" not in message


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(BenchError, match="cannot be read"):
            read_results(path)


def test_lists_of_requests_take_no_memory(tmp_path: pathlib.Path) -> None:
    """100 MB in one line, as --output-details writes it: what is kept is the run."""
    head, tail = json.dumps(SGLANG)[:-1], ', "max_concurrency": 7}'
    times = b"[" + b",".join([b"0.0123456789012345678"] * 20_000) + b"],"
    file = tmp_path / "details.jsonl"
    with file.open("wb") as opened:
        opened.write(head.encode() + b', "itls": [')
        for _ in range(250):
            opened.write(times)
        opened.write(b"[]]" + tail.encode())
    assert file.stat().st_size > 100e6
    tracemalloc.start()
    (run,) = read_results(file).runs
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(run, ServeRun) and run.max_concurrency == 7
    assert peak < 16e6


KEYS = st.sampled_from(["a", "itls", "server_info", 'q"uote', "back\\slash", "requests"])
TEXTS = st.text(st.sampled_from('a"\\[]{}:,\u00e9'), max_size=6)
NESTED = st.recursive(
    st.none() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(KEYS, NESTED, max_size=4), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(OBJECTS, st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 40), st.booleans())
def test_any_json_is_read_as_the_library_reads_it(
    objects: list[dict[str, Any]], indent: int | None, as_list: bool, chunk: int, ascii_only: bool
) -> None:
    """Whatever its shape and however it is cut into chunks; what is passed over is null."""
    dumped = [json.dumps(value, indent=indent, ensure_ascii=ascii_only) for value in objects]
    text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only) if as_list else "\n".join(dumped)
    kept = [
        {k: None if isinstance(v, list | dict) and k not in scanning.NESTED else v for k, v in value.items()}
        for value in objects
    ]
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(scanning, "_CHUNK", chunk)
        file = pathlib.Path(folder) / "any.json"
        file.write_text(text, encoding="utf-8")
        assert [found.value for found in scanning.values(file)] == kept
