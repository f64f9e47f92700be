"""`meshwright calibrate` from end to end: files in, a curve file out that every command takes."""

import json
import pathlib
import re
import shlex
import tomllib

import pytest

import explorer
from explorer.api import Ran
from explorer.calibration.measured import rows_of
from explorer.cli import main
from explorer.request import make_request
from hw.errors import MeshwrightError
from hw.machine import load_machine

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE / "measure.json"
ASK = "calibrate --hardware h200"
RAN = f"{ASK} --model llama-3.1-8b --gpus 8 --layout attn_tp=8"


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.smoke
def test_timed_ops_become_a_curve_file(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "node" / "mine.toml"
    status, table, notes = run(f"{ASK} --from {EXAMPLE} --out {out}", capsys)
    assert status == 0
    assert f"wrote {out}" in notes
    for word in ("28 observations, median error", "copy_gather.latency", "elementwise.bandwidth_efficiency.bf16"):
        assert word in table
    stated = tomllib.loads(out.read_text(encoding="utf-8"))
    assert stated["inherits"] == "h200"
    assert set(stated) == {"inherits", "elementwise", "copy_gather", "sources"}
    figure = load_machine(str(out)).figure("elementwise.latency.bf16")
    assert figure.value == pytest.approx(4e-6, rel=0.01)
    assert figure.provenance == "fitted"
    assert re.fullmatch(
        r"calibrated on \d{4}-\d\d-\d\d to 28 observations: measure.json of 2026-11-30 \(28\); "
        r"median error [\d.]+ % before, 0\.\d % after",
        figure.source,
    )
    status, answer, _ = run(f"cost --hardware {out} --model llama-3.1-8b --gpus 8 --layout attn_tp=8 --json", capsys)
    assert status == 0
    mine = json.loads(answer)
    assert mine["request"]["hardware"] == str(out)
    plain = explorer.cost("llama-3.1-8b", "h200", 8, "attn_tp=8").step_seconds
    assert mine["step_seconds"] > plain  # 4 us a launch of an elementwise kernel against 3


def test_a_second_calibration_keeps_what_the_first_found(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, more = tmp_path / "one.toml", tmp_path / "two.toml", tmp_path / "more.json"
    row = {"family": "copy", "rate": "bf16", "bytes": 1e9, "seconds": 4e-4}
    more.write_text(json.dumps({"schema": "measure/1", "chip": "h200", "date": "2026-12-01", "rows": [row]}))
    assert run(f"{ASK} --from {EXAMPLE} --out {first}", capsys)[0] == 0
    assert run(f"calibrate --hardware {first} --from {more} --out {second}", capsys)[0] == 0
    one, two = load_machine(str(first)), load_machine(str(second))
    assert two.figure("copy_gather.latency") == one.figure("copy_gather.latency")
    moved = two.figure("copy.bandwidth_efficiency.bf16")
    assert moved.value < one.figure("copy.bandwidth_efficiency.bf16").value
    assert "more.json of 2026-12-01" in moved.source


def test_dry_run_writes_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer, notes = run(f"{ASK} --from {EXAMPLE} --out {tmp_path / 'x.toml'} --dry-run --json", capsys)
    assert status == 0 and "wrote" not in notes
    assert json.loads(answer)["schema"] == "calibration/1"
    assert not list(tmp_path.iterdir())


def test_a_recorded_step_and_timed_ops_together(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step of a machine whose elementwise kernels take longer: named layers, and less error afterwards."""
    slow, trace = tmp_path / "slow.toml", tmp_path / "step.json.gz"
    latency = '{ value = 8e-6, unit = "s", source = "made up" }'
    slow.write_text(f'inherits = "h200"\n[elementwise]\nlatency = {latency}\n')
    asked = f"cost --hardware {slow} --model llama-3.1-8b --gpus 8 --layout attn_tp=8 --json --trace {trace}"
    assert run(asked, capsys)[0] == 0
    status, answer, _ = run(f"{RAN} --from {trace} --from {EXAMPLE} --dry-run --json", capsys)
    assert status == 0
    document = json.loads(answer)
    assert [s["format"] for s in document["sources"]] == ["Chrome JSON", "measure/1"]
    assert document["layout"]["attn_tp"] == 8
    assert document["request"]["against"]["model"] == "llama-3.1-8b"
    step = next(o for o in document["observations"] if o["name"] == "GQA + dense: main stream, a layer")
    assert step["before"] < step["after"] <= step["measured"] * 1.001


def test_a_factor_far_from_what_was_known_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.json"
    rows = [{"family": "copy", "rate": "bf16", "bytes": 1e9 * k, "seconds": 6e-3 * k} for k in (1, 2, 3, 4)]
    path.write_text(json.dumps({"schema": "measure/1", "chip": "h200", "rows": rows}))
    status, _, notes = run(f"{ASK} --from {path} --dry-run", capsys)
    assert status == 0
    assert re.search(r"copy.bandwidth.bf16 moved [\d.]+ standard deviations of what was known of it", notes)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (f"{ASK} --from {EXAMPLE}", "--out is missing: name a file"),
        (f"{ASK} --out x.toml", "--from"),
        (f"{ASK} --from {EXAMPLE} --out x.json", "let it end in .toml"),
        (f"calibrate --hardware b200 --from {EXAMPLE} --dry-run", "was measured on 'h200', not on 'b200'"),
        (f"{ASK} --from nothing.json --dry-run", "from 'nothing.json': cannot be read (No such file"),
        (f"{ASK} --from {HERE} --dry-run", "cannot be read"),
        (f"{ASK} --from {{folder}}/step.json --dry-run", "--model, --gpus and --layout must say what ran"),
        (f"{ASK} --from {EXAMPLE} --layout attn_tp=8 --dry-run", "--layout is of what ran: give --model and --gpus"),
        (f"{RAN} --from {{folder}}/step.json --dry-run", "step.json"),
        (f"calibrate --hardware nothing.toml --from {EXAMPLE} --dry-run", "hardware 'nothing.toml': cannot be read"),
        ("calibrate --dry-run --from x", "Missing option '--hardware'"),
    ],
)
def test_what_cannot_be_is_one_line(
    command: str, complaint: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step.json").write_text('{"traceEvents": []}')
    status, out, err = run(command.replace("{folder}", str(tmp_path)), capsys)
    assert (status, out) == (2, "")
    assert complaint in err
    assert err.startswith("error: ") and err.count("\n") == 1


def test_from_python() -> None:
    found = explorer.calibrate("h200", [EXAMPLE])
    assert found.curve_file.count("[copy_gather]") == 1
    request = make_request("llama-3.1-8b", "h200", 8)
    with pytest.raises(MeshwrightError, match="'h200' ran, not 'h100'"):
        explorer.calibrate("h100", [EXAMPLE], Ran(request, request.layout("attn_tp=8")))


def test_the_documented_example_is_read() -> None:
    page = (HERE.parents[1] / "docs" / "json.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"measure/1"' in b and '"rows"' in b]
    _, rows = rows_of(json.loads(block), "json.md")
    assert rows.names == ("qkv_proj", "all_reduce")
    section = page[page.index("## `measure/1`") :]
    described = set(re.findall(r"^\| `(\w+)` \| (?:kernel|exchange|both|all)", section, re.MULTILINE))
    with pytest.raises(MeshwrightError) as kernel:
        rows_of(json.loads(block.replace("qkv_proj", "x").replace('"flops"', '"flop"')), "json.md")
    with pytest.raises(MeshwrightError) as exchange:
        rows_of(json.loads(block.replace('"payload"', '"pay"')), "json.md")
    known = [set(re.findall(r"\w+", str(e.value).partition("known are")[2])) for e in (kernel, exchange)]
    assert described == set.union(*known)
