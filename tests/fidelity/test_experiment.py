"""The command: the shipped tables, files of one's own, errors of one line, and the page that it writes."""

import csv
import gzip
import itertools
import json
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import pytest

from experiments import fidelity
from explorer.fidelity.files import Loaded, load_runs
from explorer.fidelity.generated import replace_block
from explorer.fidelity.points import NEEDED as POINTS_NEEDED
from explorer.fidelity.points import OPTIONAL as POINTS_OPTIONAL
from explorer.fidelity.repeats import AMBIGUOUS, ambiguous, distinct, groups
from explorer.fidelity.runs import Interval, Run
from explorer.fidelity.silicon import NEEDED, OPTIONAL
from hw.errors import MeshwrightError
from tests.fidelity.samples import AGG, DISAGG, POINT, POINTS_COLUMNS, SILICON_COLUMNS, write


def stated(run: Run) -> Mapping[str, Interval]:
    """Ten milliseconds and a second, for what states a batch."""
    if run.mode == "disagg" and (run.decode is None or run.decode.batch is None):
        raise MeshwrightError("decode batch is unknown")
    return {"tpot": Interval(0.01, 0.005, 0.02), "ttft": Interval(1.0, 0.5, 2.0)}


@pytest.fixture(scope="module")
def shipped() -> list[Loaded]:
    return [load_runs(path) for path in fidelity.SHIPPED]


def test_all_shipped_rows_are_read(shipped: list[Loaded]) -> None:
    table, points = shipped
    assert (len(table.runs), len(points.runs)) == (1067, 18)
    assert all(not loaded.refused and not loaded.unread for loaded in shipped)
    assert Counter(run.mode for run in table.runs) == {"agg": 537, "disagg": 530}
    assert sum(run.decode is not None and run.decode.batch is not None for run in table.runs) == 76
    # seven rows have no silicon_concurrency in their text
    assert sum(run.concurrency is None for run in table.runs) == 7
    assert {run.engine for run in (*table.runs, *points.runs)} == {"sglang", "trtllm", "vllm", "other"}


def test_identical_rows_counted_by_hand(shipped: list[Loaded]) -> None:
    """Text rows without id and source, models of the same shapes as one: what is left must be at least what we keep."""
    with gzip.open(fidelity.SHIPPED[0], "rt") as file:
        rows = list(csv.DictReader(file))
    figures = {(float(r["silicon_ttft_ms"]), float(r["silicon_tpot_ms"])) for r in rows}
    rounded = {(f"{ttft:.9g}", f"{tpot:.9g}") for ttft, tpot in figures}
    kept = distinct(shipped[0].runs)
    assert len(kept.runs) + kept.repeated + kept.restated == len(rows)
    assert len(kept.runs) == len(rounded) == 859


def test_the_noise_that_the_issue_names_is_there(shipped: list[Loaded]) -> None:
    """Equal inputs differ by up to 2.2 times in TPOT and 10 times in TTFT before restated runs are sorted out."""
    factors: dict[str, list[float]] = {"tpot": [], "ttft": []}
    for group in groups(shipped[0].runs):
        for name, of_name in factors.items():
            values = [run.measured[name] for run in group]
            of_name.append(max(values) / min(values))
    assert max(factors["tpot"]) == pytest.approx(2.238, abs=5e-4)
    assert max(factors["ttft"]) == pytest.approx(10.00, abs=5e-3)


def test_the_cut_between_reruns_and_speculation_lies_in_the_widest_gap(shipped: list[Loaded]) -> None:
    """As docs/fidelity.md says: factors up to 1.017, then none below 1.07."""
    runs = distinct(shipped[0].runs).runs
    values = [[run.measured["tpot"] for run in group] for group in groups(runs)]
    factors = sorted(max(v) / min(v) for v in values if len(v) > 1)
    low = [f for f in factors if f < 1.25]
    gap, below = max((high / low, low) for low, high in itertools.pairwise(low))
    assert below == pytest.approx(1.017, abs=1e-3)
    assert below * gap == pytest.approx(1.070, abs=1e-3)
    assert below < AMBIGUOUS < below * gap
    assert 0 < sum(ambiguous(runs)) < len(runs) / 5


def test_repaired_rows_agree_with_rows_that_state_the_same_run(shipped: list[Loaded]) -> None:
    """Nine repaired runs are also in the table on n GPUs, and there as we read them."""
    by_figures: dict[object, list[Run]] = {}
    for run in shipped[0].runs:
        by_figures.setdefault(tuple(sorted((k, f"{v:.9g}") for k, v in run.measured.items())), []).append(run)
    both = [g for g in by_figures.values() if len({run.repaired is None for run in g}) == 2]
    assert len(both) == 9
    assert all(len({run.pool for run in group}) == 1 for group in both)


def test_tables_of_the_shipped_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert fidelity.main([], stated) == 0
    out = capsys.readouterr().out
    for part in ("tpot ambiguous", "Noise floor", "decode batch is unknown", "rows repeat another", "counted once"):
        assert part in out


def test_a_file_of_either_format_as_json(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "a.csv", (*SILICON_COLUMNS, "mood"), AGG, AGG, {**DISAGG, "decode_batch_size": ""})
    points = write(tmp_path / "b.csv", POINTS_COLUMNS, POINT, {**POINT, "unit": "?"})
    assert fidelity.main(["--data", str(table), "--data", str(points), "--json"], stated) == 0
    printed = capsys.readouterr()
    assert "nothing reads column 'mood'" in printed.err
    found = json.loads(printed.out)
    counts = {each["name"]: (each["n"], each["scored"], each["refused"]) for each in found["sets"]}
    assert counts["tpot"] == (4, 2, 2)
    assert counts["ttft"] == (2, 1, 1)
    assert counts["all"] == (6, 3, 3)
    assert found["duplicates"]["repeated"] == 1


@pytest.mark.parametrize("content", [None, b"", b"\x00\x01\xff", b"a,b\n1,2\n", b"just a line\n"])
def test_what_is_no_table_is_one_line_and_status_2(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_bytes(content)
    assert fidelity.main(["--data", str(path)], stated) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1


def test_docs_are_of_the_shipped_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        fidelity.main(["--write-docs", "--data", "x.csv"], stated)
    assert "leave --data out" in capsys.readouterr().err


def test_docs_are_written_between_the_marks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scoreboard -->\nold\n<!-- /scoreboard -->\nafter\n")
    monkeypatch.setattr(fidelity, "DOCS", page)
    assert fidelity.main(["--write-docs"], stated) == 0
    first = page.read_text()
    assert first.startswith("before\n<!-- scoreboard -->\n| set |") and first.endswith("<!-- /scoreboard -->\nafter\n")
    assert "old" not in first and "| tpot ambiguous |" in first
    widths = {line.count("|") for line in first.splitlines() if line.startswith("| tpot")}
    assert widths == {11, 7}  # ten columns of scores, six of noise
    assert fidelity.main(["--write-docs"], stated) == 0
    assert page.read_text() == first


@pytest.mark.parametrize("text", ["", "<!-- x -->", "<!-- /x --><!-- x -->", "<!-- x --><!-- x --><!-- /x -->"])
def test_a_page_without_marks_stays(tmp_path: pathlib.Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(MeshwrightError, match="must have"):
        replace_block(page, "x", "new")
    assert page.read_text() == text
    with pytest.raises(MeshwrightError, match="cannot be read"):
        replace_block(tmp_path / "absent.md", "x", "new")


def test_the_page_describes_every_column() -> None:
    page = fidelity.DOCS.read_text()
    needed = {*NEEDED, *POINTS_NEEDED} - {"prefill_tp_size", "decode_tp_size"}
    assert [name for name in needed if f"**`{name}`**" not in page] == []
    optional = {name for name in (*OPTIONAL, *POINTS_OPTIONAL) if not name.startswith(("prefill_", "decode_"))}
    assert [name for name in optional - needed - {"num_workers"} if f"`{name}`" not in page] == []


def test_it_runs_as_a_file(tmp_path: pathlib.Path) -> None:
    script = str(pathlib.Path(fidelity.__file__))
    done = subprocess.run(
        [sys.executable, script, "--data", str(tmp_path / "absent.csv")],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(script).parents[1],
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent.csv: cannot be read (No such file or directory)" in done.stderr and done.stderr.count("\n") == 1
