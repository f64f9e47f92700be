"""Rows survive whatever ends a run, and are never mixed with those of another machine."""

import json
import pathlib

import pytest

from explorer.measuring.errors import MeasuringError
from explorer.measuring.journal import Journal

HERE = {"machine": "a", "devices": ["H200"]}
FIRST, SECOND = ({"name": name, "kind": "send", "payload": 8.0, "seconds": 1e-5} for name in ("first", "second"))


def test_rows_are_on_disk_as_they_come(tmp_path: pathlib.Path) -> None:
    """A run that is killed leaves what it had: the file is read back while the first journal is still open."""
    path = tmp_path / "m.journal"
    journal = Journal(path, HERE)
    journal.add(FIRST)
    assert Journal(path, HERE).rows == {"first": FIRST}
    again = Journal(path, HERE)
    assert again.resumed == 1
    again.add(SECOND)
    assert list(Journal(path, HERE).rows.values()) == [FIRST, SECOND]


def test_a_line_that_was_cut_short_is_lost_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.journal"
    journal = Journal(path, HERE)
    journal.add(FIRST)
    journal.add(SECOND)
    path.write_text(path.read_text()[:-20])
    resumed = Journal(path, HERE)
    assert list(resumed.rows) == ["first"]
    resumed.add(SECOND)
    assert list(Journal(path, HERE).rows) == ["first", "second"]


@pytest.mark.parametrize("changed", [{"machine": "b"}, {"devices": ["H200"] * 2}, {"jax": "0.12"}])
def test_rows_of_other_surroundings_are_not_gone_on_with(tmp_path: pathlib.Path, changed: dict[str, object]) -> None:
    path = tmp_path / "m.journal"
    Journal(path, HERE).add(FIRST)
    other = Journal(path, {**HERE, **changed})
    assert other.rows == {} and other.set_aside == tmp_path / "m.journal.other"
    assert Journal(path, HERE).rows == {}  # begun anew, on disk too
    assert other.set_aside is not None
    other.set_aside.replace(path)
    assert Journal(path, HERE).rows == {"first": FIRST}  # and nothing was lost


@pytest.mark.parametrize(
    "line",
    [
        '{"name": "bad", "seconds": NaN}',
        '{"name": "bad", "seconds": 1e-5, "payload": Infinity}',
        '{"name": "bad", "seconds": 0}',
        '{"name": "bad", "seconds": "1"}',
        '{"name": "bad"}',
        '{"seconds": 1e-5}',
        '{"name": "copy bandwidth"}',
        '{"name": "copy bandwidth", "bytes_per_s": {"copy": -1}}',
    ],
)
def test_a_row_that_is_not_whole_is_measured_again(tmp_path: pathlib.Path, line: str) -> None:
    path = tmp_path / "m.journal"
    journal = Journal(path, HERE)
    journal.add(FIRST)
    path.write_text(path.read_text() + line + "\n")
    assert Journal(path, HERE).rows == Journal(path, HERE).rows == {"first": FIRST}


def test_what_failed_is_tried_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.journal"
    Journal(path, HERE).add({"name": "first", "error": "RESOURCE_EXHAUSTED"})
    assert Journal(path, HERE).rows == {}


@pytest.mark.parametrize(
    "text", ["a letter to my aunt\n", "[1, 2]\n", json.dumps({"schema": "cost/1"}), "\x00\xff\n", "3\n"]
)
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "m.journal"
    path.write_text(text)
    with pytest.raises(MeasuringError, match=r"^m\.journal is there and holds no rows of a measurement: remove it"):
        Journal(path, HERE)
    assert path.read_text() == text


def test_a_folder_in_its_place_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.journal").mkdir()
    with pytest.raises(MeasuringError, match=r"m\.journal cannot be read \(Is a directory\): give another --out"):
        Journal(tmp_path / "m.journal", HERE)


def test_a_finished_measurement_leaves_none(tmp_path: pathlib.Path) -> None:
    journal = Journal(tmp_path / "m.journal", HERE)
    journal.done()
    assert list(tmp_path.iterdir()) == []
