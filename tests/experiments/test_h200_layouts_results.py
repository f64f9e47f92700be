"""A file of results that is gone on with: every row keeps the heading of the run that measured it."""

import json
import pathlib
import re
from typing import Any

import pytest

from experiments.h200_layouts import __main__, results
from experiments.h200_layouts.results import Results, programs
from experiments.h200_layouts.show import about


def at(monkeypatch: pytest.MonkeyPatch, **other: Any) -> dict[str, Any]:
    """From here on, the heading of this machine with something else in it."""
    heading = {"date": "2026-12-01", "device": "a GPU", "gpus": 2, "versions": {"jax": "1"}, "programs": "ab"} | other
    monkeypatch.setattr(results, "heading", lambda: heading)
    return heading


def test_rows_of_other_runs_keep_their_heading(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "layouts.json"
    first = at(monkeypatch)
    Results(file).put("a", {"flight": 1.0})
    document = json.loads(file.read_text()) | {"notes": ["by hand"]}
    file.write_text(json.dumps(document))
    second = at(monkeypatch, versions={"jax": "2"})
    Results(file).put("b", {"flight": 2.0})
    third = at(monkeypatch, programs="cd")
    later = Results(file)
    later.put("c", {"flight": 3.0})
    later.put("d", {"error": "none"})
    at(monkeypatch)
    Results(file).put("e", {"flight": 4.0})
    found = json.loads(file.read_text())
    assert found["runs"] == [first, second, third] and found["notes"] == ["by hand"]
    assert {key: row["run"] for key, row in found["points"].items()} == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 0}
    assert about(found) == [
        "run 0: 2 rows, 2026-12-01, 2 x a GPU, jax 1, programs ab",
        "run 1: 1 rows, 2026-12-01, 2 x a GPU, jax 2, programs ab",
        "run 2: 2 rows, 2026-12-01, 2 x a GPU, jax 1, programs cd",
        "- by hand",
    ]


def test_a_kernel_that_is_replaced_makes_other_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results.layouts, "__path__", [str(tmp_path)])
    (tmp_path / "mla").mkdir()
    seen = []
    for name, text in (("mla/kernel.py", "a"), ("mla/kernel.py", "b"), ("tiles.toml", "b"), ("notes.md", "c")):
        (tmp_path / name).write_text(text)
        programs.cache_clear()
        seen.append(programs())
    programs.cache_clear()
    assert len(set(seen[:3])) == 3 and seen[3] == seen[2] and len(seen[0]) == 16


def test_the_heading_of_a_run_says_what_ran() -> None:
    found = results.heading()
    assert found.keys() == {"date", "device", "gpus", "versions", "programs"}
    assert found["versions"]["jax"] and found["gpus"] == 16


def test_every_stored_row_is_of_a_run_with_a_day() -> None:
    document = json.loads(__main__.RESULTS.read_text(encoding="utf-8"))
    assert {row["run"] for row in document["points"].values()} == set(range(len(document["runs"])))
    assert all(run["date"].startswith("20") for run in document["runs"])


def test_the_changelog_says_what_the_experiment_says() -> None:
    """The docstring is held against the results by another test."""
    said = " ".join((__main__.__doc__ or "").split())
    figures = re.search(
        r"Of (\d+) held out the median error is ([\d.]+) %, (\d+) are .* largest error is ([\d.]+) %[.;]", said
    )
    assert figures is not None
    points, median, within, largest = figures.groups()
    changes = " ".join((pathlib.Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert (
        f"median error of {median} %, {within} of {points} points held out within 8 %, at most {largest} %" in changes
    )
