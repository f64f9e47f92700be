"""The curves of our own programs that ship are those of the rows that ship, and programs are priced by them."""

import json
import pathlib
import tomllib

import numpy as np
import pytest

from explorer.calibration.measured import read_measured, rows_of
from explorer.measuring.fits import curves_of, predicted
from explorer.measuring.rows import owners_of
from explorer.request import make_request, of_program
from hw.figures import Provenance, program_curves
from hw.machine import load_machine
from hw.work import Family

ROOT = pathlib.Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results" / "h200" / "measure_2.json"
FILE = ROOT / "hw" / "curves" / "h200@program.toml"
REFITTED = {"elementwise.bf16", "reduce_scatter"}


@pytest.mark.smoke
def test_the_rows_are_predicted_by_the_curves() -> None:
    """Median error of all rows, and of each family's: what the README and the results state."""
    chip, rows = read_measured(ROWS)
    machine = load_machine(chip, curves=program_curves(chip))
    off = np.abs(predicted(machine, rows) / rows.seconds - 1.0)
    assert len(off) >= 120
    assert np.median(off) < 0.05
    for family in (Family.GEMM, Family.ATTENTION, Family.GROUPED_GEMM, Family.ATTENTION_HEADS):
        mine = np.unique(rows.owner[np.array([of is family for of in rows.work.family])])
        assert len(mine) >= 6 and np.median(off[mine]) < 0.06, family


def test_the_curves_are_what_the_rows_give() -> None:
    """Some of them, that take seconds; `meshwright measure --from` makes all."""
    document = json.loads(ROWS.read_text(encoding="utf-8"))
    some = [row for row in document["rows"] if set(owners_of(row)) <= REFITTED]
    found = curves_of(load_machine("h200"), rows_of(document | {"rows": some}, "some")[1])
    stated = tomllib.loads(FILE.read_text(encoding="utf-8"))
    for curve in found.curves:
        given = {**curve.values, "spread": curve.quality.held_out_p80}
        of_curve = {what: of_rates.get(curve.rate, of_rates) for what, of_rates in stated[curve.owner].items()}
        assert {what: figure["value"] for what, figure in of_curve.items()} == pytest.approx(given, rel=1e-3)
    assert {curve.owner for curve in found.curves} == {"elementwise", "reduce_scatter"} and not found.kept


def test_the_curves_are_those_that_the_document_has() -> None:
    """What both say of each: its rows, and its error of rows held out."""
    text = FILE.read_text(encoding="utf-8")
    assert text.splitlines()[0] == (
        f"# Curves fitted to the rows of {ROWS.relative_to(ROOT)} by `meshwright measure --from`: do not edit."
    )
    stated = tomllib.loads(text)
    said = {
        (owner, rate or None): stated["sources"][figure["source"]].partition(": ")[2]
        for owner, curve in stated.items() if owner not in ("inherits", "sources")
        for rate, figure in ({"": curve["latency"]} if "value" in curve["latency"] else curve["latency"]).items()
    }  # fmt: skip
    curves = json.loads(ROWS.read_text(encoding="utf-8"))["curves"]
    assert said == {
        (curve["owner"].partition(".")[0], curve["owner"].partition(".")[2] or None): (
            f"{curve['rows']} rows, held out {100 * curve['held_out']:.1f} %"
        )
        for curve in curves
    }
    assert all(curve["held_out"] <= curve["before"] for curve in curves)


def test_a_program_is_priced_by_the_curves_of_its_kernels() -> None:
    ours = of_program(make_request("llama-3.1-8b", "h200", 2, domain=4, gpus_per_host=4)).machine
    assert (ours.name, ours.sources.chip) == ("h200", "h200@program")
    assert (float(ours.domain), float(ours.gpus_per_host)) == (4.0, 4.0)
    assert ours.figure("state.latency.bf16").provenance is Provenance.FITTED
    assert ours.figure("state.latency.bf16").source.startswith("measured on ")
    # an engine's kernels have the chip's; a chip that nobody measured has no others
    assert make_request("llama-3.1-8b", "h200", 2).machine.sources.chip == "h200"
    assert of_program(make_request("llama-3.1-8b", "h100", 2)).machine.sources.chip == "h100"


def test_a_curve_file_of_the_users_is_taken_as_it_is(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'inherits = "h200"\n[gemm]\nlatency.bf16 = { value = 3e-6, unit = "s", source = "mine" }\n', encoding="utf-8"
    )
    assert of_program(make_request("llama-3.1-8b", str(mine), 2)).machine.figure("gemm.latency.bf16").value == 3e-6
