"""A bench whose check fails says so, shows no times and ends with status 1."""

import importlib
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from experiments import bench_kda_step, bench_mla_decode, h200_run
from experiments.measured import beyond, failures, keep, stored

BOUNDS: Final = {"error": 0.1, "exact": True}
# where its judged rows stand, and each figure that is judged: the way to it in a row
JUDGED: Final = {
    "bench_mla_decode": ("checked", (("error",), ("lse_error",), ("empty_rows_right",))),
    "bench_paged_attention": ("checked", (("error",), ("lse_error",), ("empty_rows_right",))),
    "bench_grouped_gemm": ("checked", (("error",),)),
    "bench_kda_step": (
        "checked", tuple((form, kind) for form in ("mosaic_gpu", "triton", "xla") for kind in ("error", "state_error"))
    ),
    "bench_overlap": ("plain", (("error",),)),
    "h200_attention": ("rows", (("error",),)),
    "h200_dispatch": ("checked", (("error",),)),
}  # fmt: skip
CASES: Final = [(name, way) for name, (_, ways) in JUDGED.items() for way in ways]


@pytest.mark.parametrize("found", [0.11, math.nan, math.inf, None])
def test_what_is_no_number_within_its_bound_is_a_failure(found: float | None) -> None:
    row = {"exact": True} if found is None else {"exact": True, "error": found}
    (line,) = beyond(row, BOUNDS)
    assert line == f"error is {found}, not within 1.0e-01"


@pytest.mark.parametrize("found", [False, None, 1, "yes"])
def test_what_is_not_so_is_a_failure(found: Any) -> None:
    assert beyond({"error": 0.1, "exact": found}, BOUNDS) == [f"exact is {found}, not true"]


def test_what_is_within_its_bounds_is_right() -> None:
    assert beyond({"error": 0.1, "exact": True, "more": math.nan}, BOUNDS) == []


def test_nothing_checked_is_a_failure() -> None:
    judges = {"checked": lambda row: beyond(row, BOUNDS)}
    assert failures({"timed": [{}]}, judges) == ["WRONG: checked has no row, so that nothing was checked"]
    rows = [{"error": 0.0, "exact": True}, {"error": math.nan, "exact": True}]
    assert failures({"checked": rows}, judges) == ["WRONG: checked 2: error is nan, not within 1.0e-01"]


def test_a_failure_is_said_with_its_row_and_ends_what_is_kept_with_status_1(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rows = tmp_path / "made" / "out.json", [("checked", {"error": math.nan, "exact": True}), ("timed", {"us": 1})]
    with pytest.raises(SystemExit) as ended:
        keep(file, {"device": "a GPU"}, iter(rows), {"checked": lambda row: beyond(row, BOUNDS)})
    said, line = capsys.readouterr(), "WRONG: checked 1: error is nan, not within 1.0e-01"
    assert ended.value.code == 1 and said.err == f"{line}\n" and line in said.out.splitlines()[0]
    assert json.loads(file.read_text())["timed"] == [{"us": 1}]  # device time is not thrown away
    keep(file, {}, iter(rows[1:]))
    assert stored(file) == {"timed": [{"us": 1}]}


@pytest.mark.parametrize("name", ["bench_mla_decode", "bench_grouped_gemm", "bench_paged_attention", "bench_kda_step"])
def test_a_case_that_does_not_start_is_a_failure_and_the_others_are_measured(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, asked = importlib.import_module(f"experiments.{name}"), []

    def refuses(*case: Any) -> Any:
        asked.append(case)
        raise ValueError("236 KiB of shared memory\nmore")

    monkeypatch.setattr(bench, "checked", refuses)
    monkeypatch.setattr(bench, "TIMED", ())
    cases = bench.CHECKED if name == "bench_grouped_gemm" else bench.RAGGED
    steps = bench._found() if name == "bench_paged_attention" else bench._steps()
    rows = list(itertools.islice(steps, len(cases)))
    assert len(asked) == len(cases) and {kind for kind, _ in rows} == {"checked"}
    for _, row in rows:
        (line,) = bench.JUDGES["checked"](row)
        assert line.endswith("failed, ValueError: 236 KiB of shared memory")


def test_latent_attention_is_timed_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles before it is timed is what is timed, beside XLA's form and without it."""
    batches = (bench_mla_decode.Batch(1, 16, (64, 64)), bench_mla_decode.Batch(2, 16, (65, 3)))
    monkeypatch.setattr(bench_mla_decode, "TIMED", batches)
    monkeypatch.setattr(bench_mla_decode, "RAGGED", ())
    even, ragged = [row for kind, row in bench_mla_decode._steps() if kind == "timed"]
    assert even["form"] == ragged["form"] == "xla" and [line.split(":")[0] for line in even["errors"]] == [
        "mosaic_gpu", "triton"
    ]  # fmt: skip
    assert even["seconds"] > 0 and even["xla_seconds"] > 0 and "xla_seconds" not in ragged
    assert (ragged["requests"], ragged["verify"], ragged["tokens"], ragged["longest"]) == (2, 2, 34, 65)


def test_steps_of_linear_attention_are_timed_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kda_step, "TIMED", ((2, 1, 3),))
    monkeypatch.setattr(bench_kda_step, "RAGGED", ())
    ((kind, row),) = bench_kda_step._steps()
    assert kind == "timed" and row["form"] == "xla" and row["seconds"] > 0
    assert row["all_tb_per_s"] / row["tb_per_s"] == pytest.approx(1 + 11 * 3 / (2 * 128))


@pytest.mark.parametrize("name", JUDGED)
def test_stored_checks_held(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench = importlib.import_module(f"experiments.{name}")
    document = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    assert bench.JUDGES.keys() == {JUDGED[name][0]} and failures(document, bench.JUDGES) == []
    bench.show(bench.RESULTS)
    assert "┃" in capsys.readouterr().out


def spoilt(document: Any, rows: str, way: tuple[str, ...]) -> Iterator[Any]:
    """The document with a figure of its last judged row that is no number, and with one that is too large or not so."""
    *folders, name = way
    row = document[rows][-1]
    for folder in folders:
        row = row[folder]
    right = row[name]
    for wrong in (math.nan, False if right is True else 0.5):
        row[name] = wrong
        yield document


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda part: part if isinstance(part, str) else ".".join(part))
def test_no_times_are_shown_of_what_is_wrong(
    name: str, way: tuple[str, ...], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = importlib.import_module(f"experiments.{name}")
    show: Callable[[pathlib.Path], None] = bench.show
    for document in spoilt(json.loads(bench.RESULTS.read_text(encoding="utf-8")), JUDGED[name][0], way):
        (tmp_path / "wrong.json").write_text(json.dumps(document))
        with pytest.raises(SystemExit) as ended:
            show(tmp_path / "wrong.json")
        said = capsys.readouterr()
        assert ended.value.code == 1 and said.out == ""
        assert said.err.startswith("WRONG: ") and way[-1] in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("name", ["run_tiny_1", "run_tiny_2", "run_slices_2"])
def test_runs_are_held_to_their_check_where_they_have_one(name: str) -> None:
    document = json.loads((h200_run.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert failures(document, h200_run.JUDGES) == []
    checked = [row for row in document["runs"] if row["check"] is not None]
    assert len(checked) == ("tiny" in name) * len(document["runs"])
    for row in checked[:1]:
        row["check"] |= {"error": math.nan, "same_text": False}
        first, second = failures(document, h200_run.JUDGES)
        assert "error is nan" in first and "same_text is False, not true" in second
