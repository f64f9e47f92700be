"""Every number of the data files has a unit and a source, and a file that forgets is refused."""

import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from hw import figures
from hw.figures import CHIPS, CURVES, DataError, Provenance, chip_names, read_chip, read_curves

FILES = sorted([*CHIPS.glob("*.toml"), *CURVES.glob("*.toml")], key=str)
UNITS = {"B", "B/s", "FLOP/s", "GPUs", "SMs", "exponent", "flag", "fraction", "rows", "s"}


# of a curve's fields, by their ending
BOUNDS = {
    "efficiency": (1e-4, 1.0),
    "latency": (0.0, 1e-3),
    "spread": (1e-3, 1.0),
    "contention": (0.0, 2.0),
    "home": (0.0, 2.0),
    "copy_bytes": (0.0, 40.0),
    "tile_rows": (0.0, 512.0),
    "waves": (0.0, 1.0),
    "sharpness": (1.0, 12.0),
}


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
    document.pop("like", None)
    sources = document.pop("sources", {})
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
    named = {file.stem for file in CURVES.glob("*.toml")}
    deployments = {name for name in named if "@" in name}
    assert named - deployments == {*chip_names(), "assumed"}
    assert {name.partition("@")[0] for name in deployments} <= set(chip_names())


@pytest.mark.parametrize("name", [*chip_names(), "assumed"])
def test_every_figure_of_a_curve_is_in_its_bounds(name: str) -> None:
    for path, figure in read_curves(name).items():
        what = path.split(".")[1]
        least, most = next(bounds for ending, bounds in BOUNDS.items() if what.endswith(ending))
        assert least <= figure.value <= most, path


def test_what_is_inherited_from_another_chip_is_assumed() -> None:
    own, borrowed = read_curves("b200")["reduce_scatter.latency"], read_curves("b300")["reduce_scatter.latency"]
    assert own.provenance is Provenance.FITTED
    assert borrowed.provenance is Provenance.ASSUMED
    assert borrowed.value == own.value
    assert borrowed.source == f"from b200: {own.source}"
    assert read_curves("gb300")["gemm.latency.fp8"].source.startswith("from b200: gemm_b200_sxm")


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


def test_an_entry_at_one_rate_leaves_the_others_as_they_were() -> None:
    own, fits = read_curves("b200"), figures.read_fits(figures.FITS / "b200.toml")
    assert own["gemm.flops_efficiency.fp8"] == fits["gemm.flops_efficiency.fp8"]
    assert own["gemm.flops_efficiency.fp4"].provenance is Provenance.ASSUMED


def test_a_rate_without_a_table_computes_no_faster_than_one_that_has_one() -> None:
    curves, chip = read_curves("h200"), read_chip("h200")
    ratio = chip["peak.bf16"].value / chip["peak.fp8"].value
    shown, other = curves["attention.flops_efficiency.bf16"], curves["attention.flops_efficiency.fp8"]
    assert other.value == pytest.approx(shown.value * ratio)
    assert (shown.provenance, other.provenance) == (Provenance.FITTED, Provenance.ASSUMED)
    assert other.source.startswith("as bf16, no table at fp8")


@pytest.mark.parametrize("file", sorted(figures.FITS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_fit_says_what_it_is_fitted_to_and_how_well(file: pathlib.Path) -> None:
    fits = figures.read_fits(file)
    assert fits
    for path, figure in fits.items():
        assert figure.provenance is Provenance.FITTED
        assert " rows, held out " in figure.source, path
