"""Every number of the data files has a unit and a source, and a file that forgets is refused."""

import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from hw import figures
from hw.figures import CHIPS, CURVES, DataError, Provenance, chip_names, read_chip, read_curves

FILES = sorted([*CHIPS.glob("*.toml"), *CURVES.glob("*.toml")], key=str)
UNITS = {"B", "B/s", "FLOP/s", "GPUs", "SMs", "flag", "fraction", "s"}


def entries(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and "value" not in value:
            yield from entries(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_number_has_a_value_a_unit_and_a_source(file: pathlib.Path) -> None:
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    document.pop("inherits", None)
    sources = document.pop("sources")
    used = set()
    for path, entry in entries(document):
        assert entry.keys() >= {"value", "unit", "source"}, path
        assert entry["unit"] in UNITS, path
        assert len(entry["source"]) >= 3, path
        assert entry.get("provenance", "datasheet") in list(Provenance), path
        used.add(entry["source"])
    assert sources.keys() <= used, "a source that no number names"


def test_every_chip_has_curves() -> None:
    assert {"b200", "b300", "gb200", "gb300", "h200", "h100", "rtx-pro-6000"} <= set(chip_names())
    assert {file.stem for file in CURVES.glob("*.toml")} == {*chip_names(), "assumed"}


@pytest.mark.parametrize("name", [*chip_names(), "assumed"])
def test_efficiencies_are_fractions_and_latencies_are_below_a_millisecond(name: str) -> None:
    for path, figure in read_curves(name).items():
        if "efficiency" in path:
            assert 0 < figure.value <= 1, path
        elif "latency" in path:
            assert 0 <= figure.value < 1e-3, path
        else:
            assert "spread" in path
            assert 0 < figure.value < 1, path


def test_what_is_inherited_from_another_chip_is_assumed() -> None:
    own, borrowed = read_curves("b200")["reduce_scatter.latency"], read_curves("b300")["reduce_scatter.latency"]
    assert own.provenance is Provenance.FITTED
    assert borrowed.provenance is Provenance.ASSUMED
    assert borrowed.value == own.value
    assert borrowed.source == f"from b200: {own.source}"
    assert read_curves("gb300")["gemm.latency.fp8"].source.startswith("from b200: aiconfigurator")


def test_a_figure_by_rate_replaces_the_one_for_every_rate() -> None:
    assert "gemm.latency" in read_curves("assumed")
    assert "gemm.latency" not in read_curves("b200")
    assert "gemm.latency.fp8" in read_curves("b200")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sms = 148", "sms is a bare value"),
        ('sms = { value = 148, unit = "SMs" }', "sms lacks source"),
        ("[peak]\nfp8 = { value = 4.5e15 }", r"peak\.fp8 lacks source, unit"),
        ('sms = { value = "148", unit = "SMs", source = "datasheet" }', "sms is '148'; a figure is a number"),
    ],
)
def test_a_number_without_its_source_is_refused(
    text: str, complaint: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(figures, "CHIPS", tmp_path)
    with pytest.raises(DataError, match=complaint):
        read_chip("new")
