"""Case files: what is read, and the one line that everything else gets."""

import datetime
import pathlib
from typing import Any

import pytest

from explorer.cases.case import CaseError, Kind
from explorer.cases.reading import LARGEST, case_of, chosen, read_case, read_cases

FIGURE: dict[str, Any] = {"quantity": "kv_gib", "reported": 10.57, "printed_to": 0.01}
SERVER: dict[str, Any] = {"command": "sglang serve --model-path llama-3.1-8b", "hardware": "h100"}


def table(**changes: Any) -> dict[str, Any]:
    case = {"id": "X1", "kind": "MEM", "title": "t", "source": "https://s", "server": dict(SERVER), "figure": [FIGURE]}
    return {key: value for key, value in {**case, **changes}.items() if value is not None}


def test_what_a_case_says():
    case = case_of(table(date=datetime.date(2025, 5, 9), given={"kv_tokens": 7}, note="n"), "x.toml")
    assert (case.id, case.kind, case.date, case.note) == ("X1", Kind.MEMORY, "2025-05-09", "n")
    assert case.servers["server"].hardware == "h100"
    (figure,) = case.figures
    assert (figure.reported, figure.printed_to, dict(figure.given), figure.missing) == (
        10.57,
        0.01,
        {"kv_tokens": 7},
        None,
    )


def test_a_figure_overrides_the_readings_of_its_case():
    figure = {**FIGURE, "given": {"kv_tokens": 2}}
    case = case_of(table(given={"kv_tokens": 1, "state_slots": 3}, figure=[figure, FIGURE]), "x")
    assert [dict(f.given)["kv_tokens"] for f in case.figures] == [2, 1]
    assert all(f.given["state_slots"] == 3 for f in case.figures)


def test_missing_inputs_of_a_case_are_those_of_its_figures():
    case = case_of(table(missing="flags", figure=[FIGURE, {**FIGURE, "missing": "chip"}]), "x")
    assert [f.missing for f in case.figures] == ["flags", "chip"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": None}, "id is missing: give text"),
        ({"kind": "MEMORY"}, "kind is 'MEMORY': choose one of MEM, CAP, OOM, LAY, PERF, CFG"),
        ({"figure": []}, "figure is []: write at least one"),
        ({"figures": [FIGURE]}, "unknown key figures: nearest is 'figure'"),
        ({"server": {**SERVER, "hardwar": "h200"}}, "unknown key server.hardwar: nearest is 'hardware'"),
        ({"server": {"hardware": "h200"}}, "server.command is missing: give text"),
        ({"server": {**SERVER, "requests": -1}}, "server.requests is -1: give a positive whole number"),
        ({"server": {**SERVER, "requests": 1.5}}, "server.requests is 1.5: give a positive whole number"),
        ({"server": {**SERVER, "requests": True}}, "server.requests is True: give a number"),
        ({"server": {**SERVER, "memory_gib": "44"}}, "server.memory_gib is '44': give a number"),
        ({"servers": {"a": SERVER}}, "write [server] or [servers.NAME], not both"),
        ({"given": {"kv_token": 1}}, "unknown key given.kv_token: nearest is 'kv_tokens'"),
        ({"given": {"kv_tokens": float("nan")}}, "given.kv_tokens is nan: give a number"),
        ({"given": {"kv_tokens": 10**30}}, "give a number below 1e18"),
        ({"figure": [{"quantity": "kv_gib"}]}, "figure.reported is missing"),
        ({"figure": [{**FIGURE, "reported": [1]}]}, "figure.reported is [1]"),
        ({"figure": [{**FIGURE, "of": "b"}]}, "figure.of is 'b': name a server of the file: server"),
        ({"figure": [{**FIGURE, "among": "b"}]}, "figure.among is 'b': give a list"),
        ({"figure": [{**FIGURE, "given": {"x": 1}}]}, "unknown key figure.given.x"),
        ({"server": None, "servers": {"a": SERVER, "b": SERVER}}, "figure.of is missing: say which server: a, b"),
        ({"date": "2025"}, "date is '2025': give a date"),
    ],
)
def test_one_line_says_what_is_wrong(changes: dict[str, Any], says: str):
    with pytest.raises(CaseError) as error:
        case_of(table(**changes), "x.toml")
    line = str(error.value)
    assert line.startswith("x.toml: ") and says in line and "\n" not in line


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfe\x00", "no TOML"),
        (b"a = [" * 3000, "no TOML"),
        (b"a" * (LARGEST + 1), "longer than 1 MiB"),
        (b"id = 1\n" * 2, "no TOML"),
    ],
)
def test_files_that_are_no_cases(tmp_path: pathlib.Path, data: bytes, says: str):
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(CaseError) as error:
        read_case(str(path))
    assert says in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_folders(tmp_path: pathlib.Path):
    with pytest.raises(CaseError, match="0 case files"):
        read_cases(str(tmp_path))
    with pytest.raises(CaseError, match="give a folder of case files"):
        read_cases(str(tmp_path / "none"))
    text = 'id = "{}"\nkind = "CFG"\ntitle = "t"\nsource = "s"\n[[figure]]\nquantity = "padded_rows"\nreported = 1\n'
    for name, number in (("a", "X11"), ("b", "X2")):
        (tmp_path / f"{name}.toml").write_text(text.format(number))
    found = read_cases(str(tmp_path))
    assert [case.id for case in found] == ["X2", "X11"]
    assert [case.id for case in chosen(found, ["X11"])] == ["X11"]
    with pytest.raises(CaseError, match="no case 'X3' in the folder: choose of X2, X11"):
        chosen(found, ["X3"])
    (tmp_path / "c.toml").write_text(text.format("X2"))
    with pytest.raises(CaseError, match="id 'X2' is in two files"):
        read_cases(str(tmp_path))
