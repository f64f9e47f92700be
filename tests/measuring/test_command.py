"""`meshwright measure` from end to end on simulated devices: a curve file that every command takes, and its rows."""

import contextlib
import io
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

import explorer.cli.measure
from explorer.calibration.measured import read_measured
from explorer.cli import main
from explorer.measuring import session
from explorer.measuring.machine import machine_here
from explorer.measuring.rows import row_of
from hw.machine import load_machine
from hw.measuring import Bench, Chain

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "json.md"
ASK = "measure --simulate 16 --hardware h200"
THEN = "2026-01-02"


@pytest.fixture(autouse=True, scope="module")
def on_the_devices_that_are_here() -> Iterator[None]:
    """A test's process has woken its 16 devices already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer.cli.measure, "run_here", lambda simulate, distributed: None)
        patch.setenv("COLUMNS", "160")
        yield


@dataclass(frozen=True)
class Ran:
    """A command that has run: its status, and what it printed."""

    status: int
    out: str
    err: str


def run(command: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(shlex.split(command))
    return Ran(status, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Told:
    """Three commands with one --out: one whose budget is over at once, one that goes on with it, one of another
    curve; and what was there after the first and the second."""

    out: pathlib.Path
    over: Ran
    after_over: set[str]
    on: Ran
    after_on: dict[str, str]
    more: Ran


def at_a_third(bench: Bench) -> dict[str, Any]:
    """A row of three times the seconds that one expects of the chip, and 30 us."""
    return row_of(bench.name, bench.asks, 3e-5 + 3.0 * session.roughly(load_machine("h200"), bench.asks))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """All runs, at a third of the chip's speed: a test of what is written is no stopwatch."""

    def timed(bench: Bench, compiled: Future[Chain]) -> dict[str, Any]:
        assert compiled.result().seconds() > 0
        return at_a_third(bench)

    out = tmp_path_factory.mktemp("node") / "new" / "mine.toml"
    rows = out.with_suffix(".json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_timed", timed)
        over = run(f"{ASK} --gpus 1 --only copy --out {out} --seconds 1")
        after_over = {path.name for path in out.parent.iterdir()}
        on = run(f"{ASK} --gpus 1 --only copy --out {out} --json")
        after_on = {path.name: path.read_text(encoding="utf-8") for path in out.parent.iterdir()}
        rows.write_text(json.dumps(json.loads(rows.read_text(encoding="utf-8")) | {"date": THEN}), encoding="utf-8")
        patch.setattr(session, "_compiled", lambda here, bench, number: None)
        patch.setattr(session, "_timed", lambda bench, compiled: at_a_third(bench))
        more = run(f"{ASK} --gpus 2 --only all_reduce --quick --out {out}")
    return Told(out, over, after_over, on, after_on, more)


def test_a_budget_that_is_over_leaves_rows_to_go_on_with(told: Told) -> None:
    assert told.over == Ran(
        2, "", "error: nothing could be timed: give more --seconds, or see that the devices are free\n"
    )
    assert told.after_over == {"mine.journal"}
    assert told.on.status == 0
    assert "note: going on with 1 rows" in told.on.err  # the bandwidth
    document = json.loads(told.on.out)
    assert document == json.loads(told.after_on["mine.json"])
    assert {curve["owner"] for curve in document["curves"]} == {"copy.bf16"}
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## `measure/1`")[2], re.MULTILINE))
    assert {*document, *document["curves"][0], *document["rows"][0]} <= described
    assert set(told.after_on) == {"mine.toml", "mine.json"}


@pytest.mark.smoke
def test_a_machine_becomes_a_curve_file(told: Told) -> None:
    assert told.more.status == 0
    assert "copy.bf16" in told.more.out and "all_reduce" in told.more.out and "2 x cpu" in told.more.out
    assert f"wrote {told.out} and" in told.more.err and "plan" not in told.more.err  # of a CPU nobody plans with
    text = told.out.read_text(encoding="utf-8")
    assert "simulated on the CPU: that all runs is what" in text
    assert tomllib.loads(text)["inherits"] == "h200"
    # an exchange takes longer on this machine than on the chip, and the plan knows
    ask = "cost --model llama-3.1-8b --gpus 8 --layout attn_tp=8 --json --hardware"
    ours, chips = (json.loads(run(f"{ask} {name}").out)["step_seconds"] for name in (told.out, "h200"))
    assert ours > 1.5 * chips


def test_every_figure_of_a_curve_says_how_far_it_is_off(told: Told) -> None:
    """`spread`, which ranges are made of, among them: of rows that fit exactly it is next to nothing."""
    stated = tomllib.loads(told.out.read_text(encoding="utf-8"))
    assert set(stated["copy"]) == {"latency", "bandwidth_efficiency", "spread"}
    assert {"latency", "link_efficiency", "spread"} <= set(stated["all_reduce"])
    spread = load_machine(str(told.out)).figure("copy.spread.bf16")
    assert (spread.provenance, spread.unit) == ("fitted", "fraction") and spread.value < 0.1


def test_what_was_measured_before_is_kept(told: Told) -> None:
    """A curve that this run did not measure, its rows, and when they were measured."""
    assert "note: 4 rows that" in told.more.err
    before, after = (tomllib.loads(text) for text in (told.after_on["mine.toml"], told.out.read_text(encoding="utf-8")))
    assert set(after) == {"inherits", "copy", "all_reduce", "sources"}
    for what, figure in before["copy"].items():
        assert after["copy"][what]["bf16"]["value"] == pytest.approx(figure["bf16"]["value"], rel=1e-4)
    machine = load_machine(str(told.out))
    assert machine.figure("copy.latency.bf16").source.startswith(f"measured on {THEN} on ")
    assert machine.figure("all_reduce.latency").source.startswith("measured on 20")
    assert THEN not in machine.figure("all_reduce.latency").source
    document = json.loads(told.out.with_suffix(".json").read_text(encoding="utf-8"))
    assert [row.get("date") for row in document["rows"]] == [THEN] * 4 + [None] * 4
    chip, rows = read_measured(told.out.with_suffix(".json"))
    assert (chip, len(rows.names)) == ("h200", 8)


def test_curves_are_made_anew_from_the_rows(told: Told) -> None:
    """The same file, but for how it came about and the date of its rows, which a document that was written has."""
    rows, anew = told.out.with_suffix(".json"), told.out.with_name("anew.toml")
    found = run(f"measure --from {rows} --out {anew}")
    assert found.status == 0 and f"wrote {anew}\n" in found.err
    made, written = (path.read_text(encoding="utf-8").splitlines() for path in (anew, told.out))
    assert made[0] == f"# Curves fitted to the rows of {rows} by `meshwright measure --from`: do not edit."
    assert made[1:] == written[1:]
    for options, says in (
        (f"--from {rows} --quick", "--from times nothing"),
        (f"--from {told.out}", "mine.toml cannot be read"),
        (f"--from {told.out.with_suffix('.jsn')}", "mine.jsn cannot be read (No such file"),
    ):
        refused = run(f"measure {options} --out {anew}")
        assert refused.status == 2 and says in refused.err and refused.err.count("\n") == 1
    assert anew.read_text(encoding="utf-8").splitlines() == made


SURROUNDINGS: dict[str, Any] = {
    "schema": "measure/1", "date": THEN, "rows": [{"name": "a", "kind": "send", "payload": 1, "size": 2, "seconds": 1}]
}  # fmt: skip
OURS = '# Curves, written by `meshwright measure`: do not edit.\n\ninherits = "h200"\n'


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"mine.json": '{"schema": "layouts/1"}'}, "mine.json is no measure/1 document"),
        ({"mine.json": "dear diary"}, "mine.json cannot be read"),
        ({"mine.json": {"machine": "another"}}, "mine.json has rows of other devices or versions: move it away"),
        ({"mine.json": {"chip": "b200"}}, "mine.json has rows of other devices or versions: move it away"),
        ({"mine.json": {"versions": {"jax": "0.1"}}}, "mine.json has rows of other devices or versions: move it"),
        ({"mine.json": {"rows": [{"name": "a"}]}}, "mine.json: row 0: must be an object with either"),
        ({"mine.json": None}, "mine.json cannot be written (Is a directory): move it away, or give another --out"),
        ({"mine.toml": OURS}, "mine.toml is there, but not mine.json with its rows: move it away, or give"),
        ({"mine.toml": 'inherits = "h200"\n', "mine.json": {}}, "mine.toml is there and was not written by `measure`"),
    ],
)
def test_nothing_of_anothers_is_overwritten(there: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    """It is said before anything is timed."""
    for name, text in there.items():
        if text is None:
            (tmp_path / name).mkdir()
        else:
            document = SURROUNDINGS | machine_here("h200", 1, True).surroundings
            (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(document | text))
    before = {path: path.is_file() and path.read_text() for path in tmp_path.iterdir()}
    found = run(f"{ASK} --gpus 1 --only copy --out {tmp_path / 'mine.toml'}")
    assert found.status == 2 and says in found.err and found.err.count("\n") == 1
    assert {path: path.is_file() and path.read_text() for path in tmp_path.iterdir()} == before


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
    options: str, says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(f"{ASK} {options}")
    assert found.status == 2
    assert says in found.err
    assert found.err.count("\n") == 1


def test_a_file_in_the_journals_place_is_left_alone(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "mine.journal"
    other.write_text("dear diary\n")
    found = run(f"{ASK} --only copy --out {tmp_path / 'mine.toml'}")
    assert found.status == 2
    assert "mine.journal is there and holds no rows of a measurement" in found.err
    assert other.read_text() == "dear diary\n"


def test_without_a_gpu_it_is_said(tmp_path: pathlib.Path) -> None:
    found = run(f"measure --hardware h200 --out {tmp_path / 'mine.toml'}")
    assert found.status == 2
    assert found.err.startswith("error: there is no GPU to measure")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_budget_that_is_none_is_refused(seconds: str) -> None:
    found = run(f"{ASK} --seconds {seconds}")
    assert (found.status, "must be above 0" in found.err) == (2, True)


def test_an_interrupted_run_says_what_it_keeps(tmp_path: pathlib.Path) -> None:
    """In a process of its own, whose threads compile when the signal comes: the bandwidth is there, no row is yet."""
    out, journal = tmp_path / "mine.toml", tmp_path / "mine.journal"
    ask = ["measure", "--simulate", "2", "--hardware", "h200", "--only", "copy", "--out", str(out)]
    # a shell's jobs in the background ignore the signal, and so does what they start
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{start}from explorer.cli import command; command()", *ask],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not (journal.exists() and len(journal.read_text().splitlines()) > 1):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = len(journal.read_text().splitlines()) - 1
    assert kept >= 1 and f"{kept} rows are kept in {journal}: run again" in " ".join(notes.split())
