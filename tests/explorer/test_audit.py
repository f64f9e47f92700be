"""`meshwright audit`: exit status, document, table, and the function of the same name."""

import copy
import dataclasses
import io
import json
import shlex
from fractions import Fraction
from typing import Any

import pytest
from rich.console import Console

import explorer
from explorer import auditing
from explorer.cli import main
from explorer.report import audit as report
from hw.errors import MeshwrightError

ASK = "audit --model qwen3-32b --gpus 4 --context 4096 --concurrency 16"
GATHER = {"kind": "all_gather", "ranks": 4, "bytes": 4096, "model": 2, "program": 2, "ops": ["a", "b"], "agrees": True}
SAMPLE: dict[str, Any] = {
    "schema": "audit/1",
    "request": {
        "model": "toy", "draft": None, "gpus": 16, "gpus_per_host": 8, "domain": 8, "context": 8192,
        "concurrency": 64, "verify_width": 5,
    },
    "precision": {}, "versions": {}, "notes": [], "layout": {}, "layout_text": "attn_dp=4,ep=16",
    "agrees": True, "differences": [],
    "exchanges": [GATHER],
    "flops": {"model": 2_000_000, "program": 2_000_000, "error": 0.0, "tolerance": 1e-3},
    "priced_only": [
        {"layer_kind": "A", "ops": ["norm", "gate"]}, {"layer_kind": "B", "ops": ["norm"]},
        {"layer_kind": "draft in", "ops": []},
    ],
    "left_out": [],
}  # fmt: skip


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


def drawn(document: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(report.draw(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every audit finds one exchange of the model more than the program has."""
    audit_step = auditing.audit_step

    def one_more(*arguments: Any) -> Any:
        found = audit_step(*arguments)
        first, *rest = found.rows
        return dataclasses.replace(found, rows=(dataclasses.replace(first, model=first.model + 1), *rest))

    monkeypatch.setattr(auditing, "audit_step", one_more)


@pytest.mark.smoke
def test_a_layout_that_agrees_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"{ASK} --layout attn_tp=4", capsys)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].strip() == "agrees"
    # embedding, and attention and MLP of 64 layers, each 16 rows of 5120 bfloat16 values; names may wrap
    assert f"all_reduce 4 {16 * 5120 * 2:,} 129 129" in " ".join(out.split())
    assert "mlp_all_reduce" in out


def test_the_document_holds_exchanges_and_flops(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(f"{ASK} --layout attn_tp=4 --json", capsys)
    document = json.loads(out, parse_constant=pytest.fail)
    assert status == 0
    assert document["agrees"] and not document["differences"]
    assert {e["kind"] for e in document["exchanges"]} == {"all_reduce", "all_gather"}
    assert document["flops"]["model"] == document["flops"]["program"]
    assert "embed" in next(part["ops"] for part in document["priced_only"] if part["layer_kind"] == "head")


@pytest.mark.usefixtures("differing")
def test_a_difference_exits_with_1_and_is_said_last(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(f"{ASK} --layout attn_tp=4", capsys)
    assert status == 1
    assert " ".join(out.split()).endswith("130 a step in the model, 129 in the program")
    status, out, _ = run(f"{ASK} --layout attn_tp=4 --json", capsys)
    assert status == 1
    assert [e["agrees"] for e in json.loads(out)["exchanges"]].count(False) == 1


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (Fraction(2), ("FLOPs: the model has 100 % more than the program",)),
        (Fraction(3, 4), ("FLOPs: the model has 25 % fewer than the program",)),
        (Fraction(1001, 1000), ()),
    ],
)
def test_flops_are_said_beyond_the_tolerance(
    factor: Fraction, said: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    audit_step = auditing.audit_step

    def scaled(*arguments: Any) -> Any:
        found = audit_step(*arguments)
        return dataclasses.replace(found, model_flops=found.model_flops * factor)

    monkeypatch.setattr(auditing, "audit_step", scaled)
    found = explorer.audit("qwen3-32b", 4, "attn_dp=2", context=4096, concurrency=16)
    assert found.differences == said
    assert found.agrees == (not found.differences)


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ("--layout attn_tp=3", "nearest valid"),
        ("--layout attn_cp=4", "attn_cp = 4 cuts prefill only; decode cuts tokens with dcp"),
        ("--layout attn_dp=4,weight_shard=4 --gpus-per-host 2", "the 2 GPUs of a host"),
        ("--layout attn_tp=4 --gpus-per-host 0", "gpus-per-host = 0 is out of range"),
        ("--layout attn_tp=4 --domain 0", "domain = 0 is out of range"),
        ("--layout attn_tp=4 --concurrency 0", "concurrency = 0 is out of range"),
        ("--layout attn_tp=4 --context 999999999", "exceeds the"),
        ("--layout attn_tp=4 --precision kv=fp3", "fp3"),
        ("--layout attn_tp=4 --hardware b200", "--hardware"),
        ("", "--layout"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options: str, mentions: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"{ASK} {options}", capsys)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and mentions in line


def test_options_reach_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "audit --model deepseek-v3 --draft mtp --precision kv=fp8 --gpus 8 --gpus-per-host 4 --domain 16 "
        "--context 2000 --concurrency 12 --verify-width 2 --layout attn_dp=8,ep=8,weight_shard=4 --json"
    )
    document = json.loads(run(command, capsys)[1])
    assert document["request"] == {
        "model": "deepseek-v3", "draft": "mtp", "gpus": 8, "gpus_per_host": 4, "domain": 16, "context": 2000,
        "concurrency": 12, "verify_width": 2,
    }  # fmt: skip
    assert document["precision"]["kv"] == "fp8"
    assert document["layout"]["weight_shard"] == 4


def test_the_function_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = explorer.audit("qwen3-32b", 4, "attn_dp=2", context=4096, concurrency=16)
    assert found.agrees and found.differences == ()
    assert found.document() == json.loads(run(f"{ASK} --layout attn_dp=2 --json", capsys)[1])
    with pytest.raises(MeshwrightError, match="not the 4 GPUs"):
        explorer.audit("qwen3-32b", 4, "attn_dp=3")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_groups_what_is_priced_only(width: int) -> None:
    out = drawn(SAMPLE, width)
    assert max(map(len, out.splitlines())) <= width
    assert "norm (2 kinds of layer); gate; draft in" in " ".join(out.split())
    assert out.splitlines()[0].rstrip().startswith("toy | 16 GPUs, 8 a host | decode, context 8,192")


def test_what_differs_is_marked_and_said() -> None:
    document = copy.deepcopy(SAMPLE) | {"agrees": False, "differences": ["x is 3, not 2", "FLOPs"]}
    document["exchanges"].append(GATHER | {"bytes": 4096.5, "program": 3, "agrees": False})
    rows = [line.split()[:6] for line in drawn(document).splitlines() if "all_gather" in line]
    assert rows == [["all_gather", "4", "4,096", "2", "2", "a,"], ["!", "all_gather", "4", "4,096.5", "2", "3"]]
    assert [line.strip() for line in drawn(document).splitlines()[-2:]] == ["differs: x is 3, not 2", "differs: FLOPs"]
