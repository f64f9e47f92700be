"""A curve file of the user's: over the curves it inherits, written as it is read, refused in one line."""

import pathlib

import pytest

from hw.curve_files import CurveFileError, curve_file_text, read_curve_file
from hw.errors import MeshwrightError
from hw.figures import Figure, Provenance
from hw.machine import CURVE_FIELDS, load_machine
from hw.work import FAMILIES, RATES, Family

OWN = """
inherits = "h200"
[elementwise.latency]
fp8 = { value = 9e-6, unit = "s", provenance = "measured", source = "here" }
[all_reduce]
link_efficiency = { value = 0.5, unit = "fraction", source = "here" }
[sources]
here = "timed on node 7"
"""


def written(folder: pathlib.Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.smoke
def test_a_file_changes_what_it_states_and_nothing_else(tmp_path: pathlib.Path) -> None:
    chip, mine = load_machine("h200"), load_machine(written(tmp_path, OWN))
    assert mine.figure("elementwise.latency.fp8") == Figure(9e-6, "s", "timed on node 7", Provenance.MEASURED)
    assert mine.figure("all_reduce.link_efficiency").provenance is Provenance.FITTED
    assert float(mine.curves.latency[FAMILIES.index(Family.ELEMENTWISE), RATES.index("fp8")]) == 9e-6
    for path in ("elementwise.latency.bf16", "gemm.latency.fp8", "all_reduce.latency", "hbm_bandwidth"):
        assert mine.figure(path) == chip.figure(path)
    moved = (chip.curves.latency != mine.curves.latency).sum()
    assert int(moved) == 1
    assert float(mine.domain) == 8 and float(load_machine(written(tmp_path, OWN), domain=72).domain) == 72


def test_what_is_written_reads_back(tmp_path: pathlib.Path) -> None:
    figures = {
        "gemm.latency.fp8": Figure(6.25e-6, "s", 'run of "node\n7"\\', Provenance.FITTED),
        "gemm.bandwidth_efficiency.bf16": Figure(0.8125, "fraction", "another", Provenance.MEASURED),
        "send.latency": Figure(1e-5, "s", "another", Provenance.FITTED),
    }
    path = written(tmp_path, curve_file_text("b200", figures, "two\nlines"))
    inherits, read = read_curve_file(path, CURVE_FIELDS, RATES)
    assert inherits == "b200"
    expected = dict(figures)
    expected["gemm.latency.fp8"] = Figure(6.25e-6, "s", 'run of "node 7"\\', Provenance.FITTED)
    assert read == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("inherits = ", "cannot be read"),
        ("", "inherits = None: must name the curves"),
        ('inherits = "assumed"', "inherits = 'assumed': must name"),
        (OWN.replace("all_reduce", "all_reduse"), r"\[all_reduse\] is no curve: known are gemm"),
        (OWN.replace("link_efficiency", "link"), "there is no 'link' of all_reduce: known are link_efficiency"),
        (OWN.replace("fp8 =", "fp6 ="), "'fp6' is no rate of it: known are bf16, fp8, fp4"),
        (OWN.replace('"s"', '"us"'), "elementwise.latency.fp8 is in 'us': latency is in 's'"),
        (OWN.replace("0.5", "1.5"), "all_reduce.link_efficiency = 1.5 fraction: must be above 0 and at most 1"),
        (OWN.replace("0.5", "0"), "must be above 0"),
        (OWN.replace("9e-6", "nan"), "elementwise.latency.fp8 = nan s: must be from 0 to 1"),
        (OWN.replace("9e-6", "-1e-6"), "must be from 0"),
        (OWN.replace("measured", "guessed"), "'guessed' is not a valid Provenance; .* measured, fitted"),
        (OWN.replace('unit = "s", ', ""), "elementwise.latency.fp8 lacks unit"),
        ('inherits = "h200"\nspread = 3', "spread is a bare value"),
        ('inherits = "h200"\nsources = 3\n' + OWN[OWN.index("[el") : OWN.index("[sour")], "a figure is"),
    ],
)
def test_a_file_that_cannot_be_is_refused(text: str, complaint: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(MeshwrightError, match=complaint) as refused:
        load_machine(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert "mine.toml" in str(refused.value)


def test_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CurveFileError, match=r"nothing.toml': cannot be read .No such file.*give a chip's name"):
        load_machine(str(tmp_path / "nothing.toml"))
