"""Curves that made some rows come back from them, through the documents that carry both."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from explorer.calibration.measured import rows_of
from explorer.measuring.fits import LEAST_ROWS, curves_of
from hw.compat import x64
from hw.curve_forms import tuned
from hw.machine import load_machine
from hw.work import FAMILIES, RATES, Family, Rate

HBM, LINK = 4.8e12, 4.5e11  # of the chip's datasheet
SIZES = 10.0 ** np.linspace(4.5, 9.5, 12)


def observed(rows: list[dict[str, Any]]) -> Any:
    return rows_of({"schema": "measure/1", "chip": "h200", "rows": rows}, "m.json")[1]


def moved(size: float, seconds: float, **more: Any) -> dict[str, Any]:
    return {"family": "elementwise", "rate": "bf16", "bytes": size, "seconds": seconds, **more}


def passes() -> list[dict[str, Any]]:
    """1.5 us a launch + bytes / (0.6 of HBM), one launch and two."""
    return [moved(s, n * 1.5e-6 + s / (0.6 * HBM), launches=n) for s in SIZES for n in (1, 2)]


@pytest.mark.smoke
def test_a_family_of_one_kernel() -> None:
    (curve,) = curves_of(load_machine("h200"), observed(passes()))
    assert (curve.owner, curve.rate) == ("elementwise", "bf16")
    assert curve.values == pytest.approx({"latency": 1.5e-6, "bandwidth_efficiency": 0.6}, rel=0.01)
    assert curve.quality.held_out < 0.005 < 0.1 < curve.before


def test_kernels_timed_together_are_told_apart_by_those_that_were_timed_alone() -> None:
    """w + e, w = 4 us + bytes / (0.5 of HBM) of a product, e an elementwise kernel as above."""
    product = [{"family": "gemm_heads", "rate": "bf16", "flops": 1e3, "bytes": s, "steps": 1.0} for s in SIZES]
    beside = {"family": "elementwise", "rate": "bf16", "bytes": 2e7}
    both = 4e-6 + 1.5e-6 + 2e7 / (0.6 * HBM)
    pairs = [{"ops": [p, beside], "seconds": both + p["bytes"] / (0.5 * HBM)} for p in product]
    found = {curve.owner: curve for curve in curves_of(load_machine("h200"), observed(pairs + passes()))}
    assert list(found) == ["elementwise", "gemm_heads"]
    assert found["elementwise"].values == pytest.approx({"latency": 1.5e-6, "bandwidth_efficiency": 0.6}, rel=0.01)
    heads = found["gemm_heads"].values
    assert heads["bandwidth_efficiency"] == pytest.approx(0.5, rel=0.02)
    assert heads["latency"] == pytest.approx(4e-6, rel=0.05)
    assert found["gemm_heads"].rows.tolist() == list(range(len(pairs)))


def test_an_exchange() -> None:
    """20 us and, beyond, (n - 1) / n of the payload at half of the link."""
    payloads = 2.0 ** np.arange(10, 29, 2)
    rows = [{"kind": "send", "payload": p, "size": 2, "seconds": 2e-5 + p / (0.5 * LINK)} for p in payloads]
    (curve,) = curves_of(load_machine("h200"), observed(rows))
    assert (curve.owner, curve.rate) == ("send", None)
    # which of its protocols explains them is not told, but together they do
    assert curve.quality.median < 0.005 < 0.05 < curve.before


def test_a_curve_says_what_is_set_beforehand_too() -> None:
    """Its parameters mean what they do beside these: a file without them would price other times."""
    rows = [{"family": "state", "rate": "bf16", "bytes": s, "seconds": 1e-5 + s / HBM, "steps": 1.0} for s in SIZES]
    (curve,) = curves_of(load_machine("h200"), observed(rows))
    assert curve.values["sharpness"] == 1.0
    # our attention is not cut as the kernels are whose grid the chip's curve counts: its blocks start once, for all
    ours = [r | {"family": "attention", "ctas": 64.0, "copied": r["bytes"] / 1e3} for r in rows]
    (curve,) = curves_of(load_machine("h200"), observed(ours))
    assert (curve.values["waves"], curve.values["cta_latency"]) == (1.0, 0.0)
    assert curve.values["sharpness"] > 1.0 and "copy_bytes" in curve.values


def test_too_few_rows_are_no_curve() -> None:
    rows = passes()[: LEAST_ROWS - 1]
    assert curves_of(load_machine("h200"), observed(rows)) == ()


def test_curves_price_the_rows_that_they_were_fitted_to() -> None:
    """The parameters are those of `hw.time`: a machine that has them predicts the rows."""
    rows, machine = observed(passes()), load_machine("h200")
    (curve,) = curves_of(machine, rows)
    with x64():
        here = tuned(machine, "curves", curve.values, (FAMILIES.index(Family.ELEMENTWISE), RATES.index(Rate.BF16)))
        np.testing.assert_allclose(np.asarray(rows.predict(here, jnp.ones(()))), rows.seconds, rtol=0.01)
