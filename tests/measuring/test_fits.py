"""Curves that made some rows come back from them, through the documents that carry both; others stay as they are."""

import os
import re
from typing import Any

import numpy as np
import pytest

from explorer.calibration.measured import Rows, rows_of
from explorer.measuring.asked import LEAST_ROWS, exchanges, kernels, rows_needed
from explorer.measuring.asked import rows_of as rows_with
from explorer.measuring.fits import Curve, Fits, curves_of, fitting_seconds, predicted
from hw.compat import x64
from hw.curve_forms import PROTOCOLS, tuned
from hw.machine import load_machine
from hw.work import FAMILIES, RATES, CollectiveKind, Family, Rate

HBM, LINK = 4.8e12, 4.5e11  # of the chip's datasheet
SIZES = 10.0 ** np.linspace(4.5, 9.5, 12)


def observed(rows: list[dict[str, Any]]) -> Rows:
    return rows_of({"schema": "measure/1", "chip": "h200", "rows": rows}, "m.json")[1]


def kernel(family: str, size: float, **more: Any) -> dict[str, Any]:
    return {"family": family, "rate": "bf16", "bytes": size, **more}


def passes() -> list[dict[str, Any]]:
    """1.5 us a launch + bytes / (0.6 of HBM), one launch and two."""
    said = [(s, n) for s in SIZES[::2] for n in (1, 2)]
    return [kernel("elementwise", s, launches=n, seconds=n * 1.5e-6 + s / (0.6 * HBM)) for s, n in said]


def products(beside: float = 2e5) -> list[dict[str, Any]]:
    """w + e, w = 40 us + bytes / (0.5 of HBM) of a product, e an elementwise kernel as above."""
    both = 4e-5 + 1.5e-6 + beside / (0.6 * HBM)
    pairs = [[kernel("gemm_heads", s, flops=1e3, steps=1.0), kernel("elementwise", beside)] for s in SIZES]
    return [{"ops": pair, "seconds": both + pair[0]["bytes"] / (0.5 * HBM)} for pair in pairs]


def attentions() -> list[dict[str, Any]]:
    return [kernel("attention", s, ctas=64.0, steps=1.0, copied=s / 1e3, seconds=1e-5 + s / HBM) for s in SIZES]


def reduced(sizes: tuple[int, ...] = (2,)) -> list[dict[str, Any]]:
    """20 us and, beyond, twice (n - 1) / n of the payload at a third of the link until that is 100 us, then at half."""
    moved = [(p, n, 2 * p * (n - 1) / n / LINK) for p in 2.0 ** np.arange(10, 31, 2) for n in sizes]
    return [
        {"kind": "all_reduce", "payload": p, "size": n, "seconds": 2e-5 + min(3 * s, 5e-5 + 2 * s)}
        for p, n, s in moved
    ]  # fmt: skip


@pytest.fixture(scope="module")
def fits() -> Fits:
    few = [kernel("index", s, flops=1e9, seconds=1e-3) for s in SIZES[: LEAST_ROWS - 1]]
    rows = [*passes(), *products(), *attentions(), *few, *reduced()]
    return curves_of(load_machine("h200"), observed(rows))


def curve_of(fits: Fits, owner: str) -> Curve:
    (found,) = (curve for curve in fits.curves if curve.owner == owner)
    return found


@pytest.mark.smoke
def test_a_family_of_one_kernel(fits: Fits) -> None:
    curve = curve_of(fits, "elementwise")
    assert (curve.owner, curve.rate) == ("elementwise", "bf16")
    assert curve.values == pytest.approx({"latency": 1.5e-6, "bandwidth_efficiency": 0.6}, rel=0.01)
    assert curve.quality.held_out < 0.005 < 0.1 < curve.before


def test_kernels_timed_together_are_told_apart_by_those_that_were_timed_alone(fits: Fits) -> None:
    curve = curve_of(fits, "gemm_heads")
    assert curve.values["bandwidth_efficiency"] == pytest.approx(0.5, rel=0.02)
    assert curve.values["latency"] == pytest.approx(4e-5, rel=0.05)
    assert len(curve.rows) == len(products())


def test_a_family_has_no_curve_of_what_others_leave_of_their_rows() -> None:
    """Of 12 rows most are seconds of the elementwise kernel beside a product: unless a curve of the product was asked
    for, it has none."""
    rows, machine = observed([*passes(), *products(2e9)]), load_machine("h200")
    found = curves_of(machine, rows)
    assert [curve.owner for curve in found.curves] == ["elementwise"]
    assert found.kept == (("gemm_heads.bf16", "it is the smaller part of the rows that it is in"),)
    assert curve_of(curves_of(machine, rows, ["gemm_heads"]), "gemm_heads").quality.median < 0.01
    # nor has the kernel beside it, where no row is its own
    none = curves_of(machine, observed(products()))
    assert [curve.owner for curve in none.curves] == ["gemm_heads"] and none.kept[0].name == "elementwise.bf16"


def test_an_exchange(fits: Fits) -> None:
    """Its fixed part and its protocols; of groups of one size nothing is said of what further ranks add."""
    curve = curve_of(fits, "all_reduce")
    assert curve.rate is None and curve.quality.median < 0.005 < 0.05 < curve.before
    assert curve.values["latency"] == pytest.approx(2e-5, rel=0.02)
    assert set(curve.values) == set(PROTOCOLS)


def test_an_exchange_has_as_many_parameters_as_its_rows_tell() -> None:
    def free(rows: list[dict[str, Any]]) -> list[int]:
        options = exchanges(load_machine("h200"), observed(rows), CollectiveKind.ALL_REDUCE)
        return [len(asked.free) for asked in options if asked.enough]

    assert free(reduced()[:LEAST_ROWS]) == [2]
    assert free(reduced()[:6]) == [2] and free(reduced()[:7]) == [2, 6]
    assert free(reduced((2, 4))[:9]) == [2] and free(reduced((2, 4))[:10]) == [2, 9]


def test_a_curve_says_what_is_set_beforehand_too(fits: Fits) -> None:
    """Its parameters mean what they do beside these: a file without them would price other times."""
    # our attention is not cut as the kernels are whose grid the chip's curve counts: its blocks start once, for all
    values = curve_of(fits, "attention").values
    assert (values["waves"], values["cta_latency"]) == (1.0, 0.0)
    assert values["sharpness"] > 1.0 and "copy_bytes" in values
    state = observed([kernel("state", s, steps=1.0, seconds=1.0) for s in SIZES])
    own = Family.STATE, Rate.BF16
    assert kernels(load_machine("h200"), state, own, rows_with(state, own)).fixed == {"sharpness": 1.0}


def test_too_few_rows_are_no_curve(fits: Fits) -> None:
    """Not more than there are parameters: three of an index, which has three."""
    assert ("index.bf16", "a fit needs 4 rows, and there are 3") in fits.kept
    machine, own = load_machine("h200"), (Family.GEMM, Rate.BF16)
    rows = observed([kernel("gemm", s, flops=1e9, steps=1.0, seconds=1.0) for s in SIZES])
    enough = {n: kernels(machine, rows, own, rows_with(rows, own)[:n]).enough for n in (5, 6)}
    assert enough == {5: False, 6: True} and rows_needed(Family.GEMM) == 6
    assert rows_needed(Family.ELEMENTWISE) == rows_needed(CollectiveKind.SEND) == LEAST_ROWS


def test_a_curve_that_rows_held_out_do_not_bear_out_is_not_taken() -> None:
    """Rows that lie a tenth off the chip's curve by no rule: a fit that has not seen them is further off."""
    machine = load_machine("h200")
    exact = predicted(machine, observed(passes())).tolist()
    off = np.where(np.random.default_rng(1).random(len(exact)) < 0.5, 0.9, 1.1).tolist()
    rows = [row | {"seconds": s * x} for row, s, x in zip(passes(), exact, off, strict=True)]
    found = curves_of(machine, observed(rows))
    assert found.curves == () and [kept.name for kept in found.kept] == ["elementwise.bf16"]
    said = re.fullmatch(r"a fit to its 12 rows is (\S+) % off those held out, and it is (\S+) %", found.kept[0].why)
    assert said and float(said[1]) > float(said[2]) and 9.0 < float(said[2]) < 11.2


def test_curves_price_the_rows_that_they_were_fitted_to(fits: Fits) -> None:
    """The parameters are those of `hw.time`: a machine that has them predicts the rows."""
    rows, machine = observed(passes()), load_machine("h200")
    with x64():
        place = FAMILIES.index(Family.ELEMENTWISE), RATES.index(Rate.BF16)
        here = tuned(machine, "curves", curve_of(fits, "elementwise").values, place)
    np.testing.assert_allclose(predicted(here, rows), rows.seconds, rtol=0.01)


def test_time_is_kept_for_as_many_fits_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured: 25 s for 13 curves on two cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert 23 < fitting_seconds(13) < 30
    assert fitting_seconds(1) < 12
