"""The curves of our own programs that ship are those of the rows that ship, and programs are priced by them."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from explorer.calibration.measured import read_measured
from explorer.request import make_request, of_program
from hw.compat import x64
from hw.figures import Provenance, program_curves
from hw.machine import load_machine
from hw.work import Family

ROWS = pathlib.Path(__file__).parents[2] / "experiments" / "results" / "h200" / "measure_2.json"


@pytest.mark.smoke
def test_the_rows_are_predicted_by_the_curves() -> None:
    """Median error of all rows, and of each family's: what the README and the results state."""
    chip, rows = read_measured(ROWS)
    machine = load_machine(chip, curves=program_curves(chip))
    with x64():
        off = np.abs(np.asarray(rows.predict(machine, jnp.ones(()))) / rows.seconds - 1.0)
    assert len(off) >= 120
    assert np.median(off) < 0.05
    for family in (Family.GEMM, Family.ATTENTION, Family.GROUPED_GEMM, Family.ATTENTION_HEADS):
        mine = np.unique(rows.owner[np.array([of is family for of in rows.work.family])])
        assert len(mine) >= 6 and np.median(off[mine]) < 0.06, family


def test_a_program_is_priced_by_the_curves_of_its_kernels() -> None:
    ours = of_program(make_request("llama-3.1-8b", "h200", 2, domain=4, gpus_per_host=4)).machine
    assert (ours.name, ours.sources.chip) == ("h200", "h200@program")
    assert (float(ours.domain), float(ours.gpus_per_host)) == (4.0, 4.0)
    assert ours.figure("gemm.latency.bf16").provenance is Provenance.FITTED
    assert ours.figure("gemm.latency.bf16").source.startswith("measured on ")
    # an engine's kernels have the chip's; a chip that nobody measured has no others
    assert make_request("llama-3.1-8b", "h200", 2).machine.sources.chip == "h200"
    assert of_program(make_request("llama-3.1-8b", "h100", 2)).machine.sources.chip == "h100"


def test_a_curve_file_of_the_users_is_taken_as_it_is(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'inherits = "h200"\n[gemm]\nlatency.bf16 = { value = 3e-6, unit = "s", source = "mine" }\n', encoding="utf-8"
    )
    assert of_program(make_request("llama-3.1-8b", str(mine), 2)).machine.figure("gemm.latency.bf16").value == 3e-6
