"""`meshwright measure` from end to end on simulated devices: a curve file that every command takes, and its rows."""

import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib

import pytest

import explorer.cli.measure
from explorer.calibration.measured import read_measured
from explorer.cli import main
from hw.machine import load_machine

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "json.md"
ASK = "measure --simulate 16 --hardware h200"


@pytest.fixture(autouse=True)
def on_the_devices_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's process has woken its 16 devices already."""
    monkeypatch.setattr(explorer.cli.measure, "run_here", lambda simulate, distributed: None)
    monkeypatch.setenv("COLUMNS", "160")


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.smoke
def test_a_machine_becomes_a_curve_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "node" / "mine.toml"
    status, table, notes = run(f"{ASK} --gpus 2 --only gemm,all_to_all --quick --out {out}", capsys)
    assert status == 0
    assert "gemm.bf16" in table and "all_to_all" in table and "2 x cpu" in table
    assert f"wrote {out} and" in notes and "plan" not in notes  # of a CPU nobody plans with
    assert "devices of the CPU: that all runs is all" in out.read_text(encoding="utf-8")
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine.json", "mine.toml"]
    stated = tomllib.loads(out.read_text(encoding="utf-8"))
    assert stated["inherits"] == "h200"
    assert set(stated) == {"inherits", "gemm", "all_to_all", "sources"}
    figure = load_machine(str(out)).figure("gemm.latency.bf16")
    assert figure.provenance == "fitted" and figure.source.startswith("measured on 20")
    chip, rows = read_measured(out.with_suffix(".json"))
    assert (chip, len(rows.names)) == ("h200", 8)
    # products take longer on this machine than on the chip, and the plan knows
    ask = "cost --model llama-3.1-8b --gpus 8 --layout attn_tp=8 --json --hardware"
    ours, chips = (json.loads(run(f"{ask} {name}", capsys)[1])["step_seconds"] for name in (out, "h200"))
    assert ours > 2 * chips


def test_a_budget_that_is_over_leaves_rows_to_go_on_with(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.toml"
    ask = f"{ASK} --gpus 1 --only copy --out {out}"
    status, _, notes = run(f"{ask} --seconds 1", capsys)
    assert status == 2
    assert notes == "error: nothing could be timed: give more --seconds, or see that the devices are free\n"
    assert not out.exists()
    assert out.with_suffix(".journal").exists()
    status, printed, notes = run(f"{ask} --json", capsys)
    assert status == 0
    assert "note: going on with 1 rows" in notes  # the bandwidth
    document = json.loads(printed)
    assert document == json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert {curve["owner"] for curve in document["curves"]} == {"copy.bf16"}
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## `measure/1`")[2], re.MULTILINE))
    assert {*document, *document["curves"][0], *document["rows"][0]} <= described
    assert not out.with_suffix(".journal").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--out mine.json", "out 'mine.json' is no name of such a file: let it end in .toml"),
        ("--only gem", "only 'gem' is no family of kernels or kind of exchange: gemm, "),
        ("--gpus 17", "gpus = 17: must be from 1 to 16"),
        ("--gpus two", "'two' is not a whole number"),
        ("--seconds soon", "'soon' is not a number"),
        ("--hardware b2000", "hardware 'b2000': must be a chip, one of "),
    ],
)
def test_bad_input_is_one_line(
    options: str, says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, printed = run(f"{ASK} {options}", capsys)
    assert status == 2
    assert says in printed
    assert printed.count("\n") == 1


def test_a_file_in_the_journals_place_is_left_alone(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "mine.journal"
    other.write_text("dear diary\n")
    status, _, printed = run(f"{ASK} --only copy --out {tmp_path / 'mine.toml'}", capsys)
    assert status == 2
    assert "mine.journal is there and holds no rows of a measurement" in printed
    assert other.read_text() == "dear diary\n"


def test_without_a_gpu_it_is_said(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, printed = run(f"measure --hardware h200 --out {tmp_path / 'mine.toml'}", capsys)
    assert status == 2
    assert printed.startswith("error: there is no GPU to measure")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_budget_that_is_none_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, notes = run(f"{ASK} --seconds {seconds}", capsys)
    assert (status, "must be above 0" in notes) == (2, True)


def test_an_interrupted_run_says_what_it_keeps(tmp_path: pathlib.Path) -> None:
    """In a process of its own, which compiles and runs when the signal comes."""
    out, journal = tmp_path / "mine.toml", tmp_path / "mine.journal"
    ask = ["measure", "--simulate", "2", "--hardware", "h200", "--only", "gemm", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "explorer.cli", *ask],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not (journal.exists() and len(journal.read_text().splitlines()) > 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = len(journal.read_text().splitlines()) - 1
    assert kept >= 2 and f"{kept} rows are kept in {journal}: run again" in " ".join(notes.split())
