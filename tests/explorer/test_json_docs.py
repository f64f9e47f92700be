"""`docs/json.md` and the documents name the same keys; its examples are JSON of the same shape."""

import functools
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from explorer.api import serve
from explorer.auditing import audit, make_audit_request
from explorer.calibration.answer import calibrate
from explorer.calibration.measured import read_measured
from explorer.calibration.sources import Ran
from explorer.comparison import compare
from explorer.costing import cost, cost_of
from explorer.elasticity import sensitivity
from explorer.engines.bench.answer import bench
from explorer.engines.bench.reading import read_results
from explorer.engines.bench.subject import Options as Subjects
from explorer.engines.check import Served, check
from explorer.engines.command import EngineName, read_launches
from explorer.engines.export import Options, export
from explorer.engines.logs.reading import read_log
from explorer.engines.logs.reconcile import document as log_document
from explorer.engines.logs.reconcile import reconcile
from explorer.engines.setup import Asked
from explorer.ledger import ledger
from explorer.planner import plan
from explorer.priced import priced
from explorer.request import Request, make_request
from explorer.running import make_run_request, run
from explorer.traces.answer import answer
from explorer.traces.export import predicted_trace

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "json.md"
COMMON = "every document"
SOMETIMES = {"reason", "remedy"}  # only of a layout that does not fit
# common keys that a document lacks
WITHOUT = {
    "audit/1": {"objective"},
    "run/1": {"objective", "precision"},
    "trace/1": {"objective", "precision"},
    "calibration/1": {"objective", "precision"},
    "bench/1": {"objective", "precision"},
    "log/1": {"objective", "precision"},
}
PLAIN_LISTS = {"step_seconds_range", "notes", "differences", "left_out", "broken"}  # of numbers or sentences
DP2, DP16 = "attn_dp=2,dcp=8,ep=16", "attn_dp=16,ep=16"
Document = dict[str, Any]


def _plan() -> Document:
    return plan(make_request("llama-3.1-8b", "h100", 8, context=4096, concurrency=16)).document()


def _memory() -> Document:
    """Of a layout that fits, with the keys that only one that does not fit has."""
    request = _request()
    tight = make_request("llama-3.1-70b", "h100", 1, context=4096, concurrency=16)
    short = ledger(tight, tight.layout("attn_tp=1")).document()
    return ledger(request, request.layout(DP2)).document() | {key: short[key] for key in SOMETIMES}


def _request() -> Request:
    return make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=64)


def _compare() -> Document:
    request = _request()
    return compare(request, request.layout(DP16), request.layout(DP2)).document()


def _audit() -> Document:
    request = make_audit_request("deepseek-v3", 16)
    return audit(request, request.layout(DP16)).document()


def _run() -> Document:
    """With every part that a run may have: a check, and a prediction for a named chip."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"gpus": 2, "scale": "tiny", "dtype": "bfloat16", "hardware": "h200", "tokens": 2}
        request = make_run_request("llama-3.1-8b", "attn_dp=2", pathlib.Path(folder), **options)
        return run(request, check=True).document()


def _trace() -> Document:
    """Of a prediction, beside itself."""
    request = _request()
    found = priced(request, request.layout(DP16))
    return answer("step.json", predicted_trace(found), predicted=cost_of(found)).document()


def _calibration() -> Document:
    """To timed ops, whose file lies beside its own tests."""
    _, rows = read_measured(pathlib.Path(__file__).parents[1] / "calibration" / "measure.json")
    request = make_request("llama-3.1-8b", "h200", 8)
    return calibrate(request.machine, [rows], Ran(request, request.layout("attn_tp=8"))).document()


def _service() -> Document:
    """With prompts on workers of their own."""
    pools: dict[str, Any] = {"prefill_layout": "attn_tp=2", "prefill_gpus": 2, "prefill_workers": 2}
    asked: dict[str, Any] = {"engine": "sglang", "shortest": 0.8, "concurrency": 3}
    return serve("llama-3.1-8b", "h100", 8, "attn_tp=8", 4096, 1024, **asked, **pools).document()


def _bench() -> Document:
    """Clients of a server and a forward pass, whose files lie beside their own tests."""
    folder = pathlib.Path(__file__).parents[1] / "engines" / "results"
    request = make_request("llama-3.1-8b", "h200", 2)
    files = [read_results(folder / name) for name in ("bench.jsonl", "forward.json")]
    return bench(files, Subjects(Asked("h200"), request, request.layout("attn_tp=2"))).document()


def _export() -> Document:
    request = make_request("deepseek-v3", "h200", 16, concurrency=512)
    return export(request, request.layout(DP16), Options(EngineName.SGLANG), Asked("h200", "deepseek-v3")).document()


def _check() -> Document:
    """With an unknown flag, an old one, a finding and a better command."""
    (launch,) = read_launches(
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --mem-fraction-static 0.7 "
        "--warp-drive --cuda-graph-max-bs 64"
    )
    return check(launch, Asked("h200"), Served(clients=32)).document()


def _log() -> Document:
    """A log beside itself."""
    file = pathlib.Path(__file__).parents[1] / "engines" / "logs" / "sglang_0.4.6_dp8.log"
    logs = [reconcile(name, read_log(file), Asked("h200")) for name in (file.name, "again.log")]
    return log_document(tuple(logs))


MAKE: dict[str, Callable[[], Document]] = {
    "plan/1": _plan,
    "cost/1": lambda: cost(_request(), _request().layout(DP16)).document(),
    "memory/1": _memory,
    "sensitivity/1": lambda: sensitivity(_request(), _request().layout(DP2)).document(),
    "compare/1": _compare,
    "audit/1": _audit,
    "run/1": _run,
    "trace/1": _trace,
    "calibration/1": _calibration,
    "service/1": _service,
    "bench/1": _bench,
    "export/1": _export,
    "check/1": _check,
    "log/1": _log,
}
READ = ["measure/1"]  # by one command: `tests.calibration` reads its example, `tests.measuring` what another writes


@functools.cache
def document_of(schema: str) -> Document:
    return MAKE[schema]()


@functools.cache
def described() -> dict[tuple[str, ...], set[str]]:
    """Keys of each table, by the backticked words of the heading above it."""
    tables: dict[tuple[str, ...], set[str]] = {}
    heading: tuple[str, ...] = ()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = tuple(re.findall(r"`([^`]+)`", line))
        elif match := re.match(r"\| `([^`]+)` \|", line):
            tables.setdefault(heading, set()).add(match[1])
    return tables


def objects(value: Any) -> Iterator[Document]:
    """The objects that a table describes: the value itself, the entries of a list, of a mapping of objects."""
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and value and all(isinstance(entry, dict) for entry in value.values()):
        yield from value.values()
    else:
        yield value


@pytest.mark.parametrize("schema", MAKE)
def test_keys_of_a_document(schema: str) -> None:
    document = document_of(schema)
    assert document["schema"] == schema
    assert set(document) == (described()[(COMMON,)] - WITHOUT.get(schema, set())) | described()[(schema,)]
    for part in ("request", "versions"):
        assert set(document[part]) == described().get((schema, part), described()[(part,)])


@pytest.mark.parametrize("path", sorted(path for path in described() if len(path) == 2), ids="/".join)
def test_keys_of_a_part(path: tuple[str, str]) -> None:
    schema, part = path
    found = list(objects(document_of(schema)["candidates" if part == "best" else part]))
    assert found
    for entry in found:
        assert set(entry) == described()[path]


def test_candidates_hold_the_keys_of_a_ledger() -> None:
    inner = described()[("memory/1",)] - {"layout", "layout_text"}
    for candidate in document_of("plan/1")["candidates"]:
        assert set(candidate["memory"]) == inner - SOMETIMES


@pytest.mark.parametrize("schema", MAKE)
def test_keys_of_a_layout(schema: str) -> None:
    document = document_of(schema)
    holders = [h for h in (document, document.get("a"), document.get("b"), document.get("best")) if h and "layout" in h]
    assert holders
    for holder in holders:
        assert set(holder["layout"]) == described()[("layout",)]


@pytest.mark.parametrize("schema", MAKE)
def test_every_object_of_a_document_is_described(schema: str) -> None:
    """No part without a table: `candidates` and `b` are like `best` and `a`, `precision` maps names to names."""
    known = {path[-1] for path in described()} | {"precision", "candidates", "b"}
    nested = {key for key, value in document_of(schema).items() if isinstance(value, dict | list)}
    assert nested - PLAIN_LISTS <= known


@pytest.mark.parametrize("schema", MAKE)
def test_documents_survive_json(schema: str) -> None:
    document = document_of(schema)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_examples_are_cut_from_documents() -> None:
    """Each example names a schema and holds nothing that such a document lacks."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    examples = [json.loads(block) for block in blocks]
    assert [example["schema"] for example in examples] == [*MAKE, *READ]
    for example in examples[: len(MAKE)]:
        subset(example, document_of(example["schema"]))


def subset(example: Any, whole: Any) -> None:
    if isinstance(example, dict):
        assert set(example) <= set(whole)
        for key, value in example.items():
            subset(value, whole[key])
    elif isinstance(example, list) and example and isinstance(example[0], dict):
        for entry in example:
            subset(entry, whole[0])
