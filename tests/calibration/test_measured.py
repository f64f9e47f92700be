"""Timed ops as observations: what a row may say, and that the factors behind them come back."""

import json
import pathlib
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from explorer.calibration.answer import calibrate
from explorer.calibration.factors import FACTORS, adjusted, prior_widths, value_at
from explorer.calibration.measured import Rows, read_measured, rows_of
from explorer.calibration.observed import CalibrationError
from explorer.calibration.solve import solve
from hw.compat import x64
from hw.machine import Machine, load_machine
from hw.work import Family, Rate

EXAMPLE = pathlib.Path(__file__).with_name("measure.json")
KERNEL = {"family": "gemm", "rate": "fp8", "flops": 1e9, "bytes": 1e6, "seconds": 1e-5}
EXCHANGE = {"kind": "send", "payload": 1e6, "size": 2, "seconds": 1e-5}
NAMES = [factor.name for factor in FACTORS]


def document(*rows: Any, **changed: Any) -> dict[str, Any]:
    return {"schema": "measure/1", "chip": "h200", "date": "2026-11-30", "machine": "m", "rows": list(rows)} | changed


@pytest.mark.smoke
def test_the_example_has_the_figures_that_it_was_made_of() -> None:
    """Elementwise: 4 us + bytes / (0.7 x 4.8 TB/s); copies: 12 us a copy + bytes / (0.75 x 450 GB/s)."""
    chip, rows = read_measured(EXAMPLE)
    assert chip == "h200"
    found = calibrate(load_machine("h200"), [rows])
    after = {change.figure: change.after for change in found.figures}
    assert set(after) == {
        *("elementwise.latency.bf16", "elementwise.bandwidth_efficiency.bf16"),
        *("copy_gather.latency", "copy_gather.link_efficiency"),
    }
    assert after["elementwise.latency.bf16"] == pytest.approx(4e-6, rel=0.01)
    assert after["elementwise.bandwidth_efficiency.bf16"] == pytest.approx(0.7, rel=0.01)
    assert after["copy_gather.latency"] == pytest.approx(12e-6, rel=0.01)
    assert after["copy_gather.link_efficiency"] == pytest.approx(0.75, rel=0.01)
    assert found.errors.observations == len(rows.names) == 28
    assert found.errors.median_after < 0.005 < 0.05 < found.errors.median_before


def test_rows_of_one_problem_count_once_with_their_median() -> None:
    again = [KERNEL | {"seconds": t} for t in (1e-5, 5e-5, 2e-5)]
    _, rows = rows_of(document(*again, EXCHANGE, KERNEL | {"bytes": 2e6}), "m.json")
    assert rows.names == ("gemm.fp8", "gemm.fp8", "send")
    np.testing.assert_array_equal(rows.seconds, [2e-5, 1e-5, 1e-5])
    assert (rows.work.family, rows.work.rate) == ((Family.GEMM,) * 2, (Rate.FP8,) * 2)
    np.testing.assert_array_equal(rows.work.bytes, [1e6, 2e6])
    np.testing.assert_array_equal(rows.collective.stride, [1.0])


def test_kernels_that_were_timed_together_are_one_observation() -> None:
    """Their seconds are the sum of what each is predicted to take; rows before and after keep theirs."""
    op = {k: v for k, v in KERNEL.items() if k != "seconds"}
    pair = {"ops": [op, op | {"family": "elementwise", "rate": "bf16"}], "seconds": 9e-6}
    machine = load_machine("h200")
    _, together = rows_of(document(pair, KERNEL, EXCHANGE), "m.json")
    _, apart = rows_of(document(*(o | {"seconds": 1.0} for o in pair["ops"]), EXCHANGE), "m.json")
    assert together.names == ("gemm.fp8 + elementwise.bf16", "gemm.fp8", "send")
    np.testing.assert_array_equal(together.owner, [0, 0, 1])
    with x64():
        first, second, send = np.asarray(apart.predict(machine, jnp.ones(())))
        found = np.asarray(together.predict(machine, jnp.ones(())))
    np.testing.assert_allclose(found, [first + second, first, send], rtol=1e-12)


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ([1], "is no measure/1 document"),
        (document(KERNEL, schema="cost/1"), "is no measure/1 document"),
        (document(KERNEL, chip=None), "chip = None: must name"),
        (document(), "has no rows"),
        (document(KERNEL, 3), "row 1: must be an object with either"),
        (document(KERNEL | {"kind": "send"}), "row 0: must be an object with either"),
        (document(KERNEL | {"family": "gem"}), "row 0: family = 'gem': must be one of gemm"),
        (document({k: v for k, v in KERNEL.items() if k != "rate"}), "rate = None: must be one of bf16"),
        (document(EXCHANGE | {"kind": "sent"}), "kind = 'sent': must be one of all_gather"),
        (document(KERNEL | {"cta": 3}), "unknown key 'cta': known are bytes, .*ctas"),
        (document(KERNEL | {"flops": "1"}), "flops = '1': must be a finite number"),
        (document(KERNEL | {"flops": float("nan")}), "flops = nan: must be"),
        (document(KERNEL | {"bytes": -1}), "bytes = -1: must be"),
        (document(KERNEL | {"flops": 0, "bytes": 0}), "flops and bytes are both 0"),
        (document(KERNEL | {"seconds": 0}), "seconds = 0: must be above 0"),
        (document(EXCHANGE | {"size": 1}), "size at least 2"),
        (document(EXCHANGE | {"payload": 0}), "payload must be above 0"),
        (document(KERNEL | {"ops": []}), "row 0: must be an object with either"),
        (document({"ops": [], "seconds": 1.0}), "`ops` must list at least one kernel"),
        (document({"ops": [EXCHANGE], "seconds": 1.0}), "`ops` must list at least one kernel"),
        (document({"ops": [KERNEL], "seconds": 1.0}), "row 0, op 0: unknown key 'seconds'"),
        (document({"ops": [{"family": "gemm"}], "seconds": 1.0}), "row 0, op 0: flops and bytes are both 0"),
    ],
)
def test_a_document_that_cannot_be_is_refused(made: Any, complaint: str) -> None:
    with pytest.raises(CalibrationError, match=rf"^m\.json.*{complaint}"):
        rows_of(made, "m.json")


def test_a_file_that_is_no_json_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.json").write_text('{"schema": "measure/1"')
    with pytest.raises(CalibrationError, match=r"m.json cannot be read .*: give a measure/1 document"):
        read_measured(tmp_path / "m.json")


def random_rows(rng: np.random.Generator, count: int) -> Rows:
    """Kernels and exchanges from those that only launch to those that are all bytes or FLOPs."""
    made: list[dict[str, Any]] = []
    for family, rate in (("gemm", "fp8"), ("grouped_gemm", "bf16"), ("attention", "bf16")):
        for flops, moved in zip(10 ** rng.uniform(7, 14, count), 10 ** rng.uniform(4, 11, count), strict=True):
            made.append({"family": family, "rate": rate, "flops": flops, "bytes": moved, "seconds": 1.0})
    for kind in ("all_reduce", "all_gather"):
        for payload, size in zip(10 ** rng.uniform(3, 11, count), rng.choice([2, 4, 8, 64], count), strict=True):
            made.append({"kind": kind, "payload": payload, "size": int(size), "seconds": 1.0})
    return rows_of(json.loads(json.dumps(document(*made))), "m.json")[1]


def seen_on(machine: Machine, rows: Rows) -> Rows:
    with x64():
        return eqx.tree_at(lambda r: r.seconds, rows, np.asarray(rows.predict(machine, jnp.ones(()))))


def moved(machine: Machine, logs: np.ndarray) -> Machine:
    with x64():
        return adjusted(machine, jnp.asarray(logs))


def test_true_factors_come_back_from_many_exact_rows() -> None:
    rng = np.random.default_rng(3)
    machine = load_machine("h200")
    widths = 3.0 * prior_widths(machine)  # few of these rows cross hosts: held closely, their factors would lean on it
    # what is reached has less room above than below
    slower = np.array(["latency" in factor.part for factor in FACTORS])
    true = rng.uniform(-0.25, np.where(slower, 0.25, -0.05))
    rows = random_rows(rng, 150)
    there = moved(machine, true)
    fit = solve(machine, [seen_on(there, rows)], widths)
    touched = np.flatnonzero(fit.touched)
    owners = ("gemm.{}.fp8", "grouped_gemm.{}.bf16", "attention.{}.bf16")
    expected = {owner.format(part) for owner in owners for part in ("bandwidth", "compute", "latency")}
    parts = ("link", "nic", "latency", "nic_latency")
    expected |= {f"{kind}.{part}" for kind in ("all_reduce", "all_gather") for part in parts}
    assert {NAMES[i] for i in touched} == expected
    back = moved(machine, np.asarray(fit.logs[:-1]))
    for path in (path for i in touched for path in FACTORS[i].paths):
        assert value_at(back, path) == pytest.approx(value_at(there, path), rel=0.01), path
    untouched = np.setdiff1d(np.arange(len(fit.logs)), touched)
    assert not fit.logs[untouched].any() and not fit.told[untouched].any()
    assert np.median(fit.told[touched]) > 0.95


def test_one_row_moves_a_factor_by_what_two_normal_errors_say() -> None:
    """Only HBM matters: ln f = d s^2 / (s^2 + r^2), of a prior s and a row r that is d faster than predicted."""
    machine = load_machine("h200")
    _, rows = rows_of(document({"family": "copy", "rate": "bf16", "bytes": 1e13, "seconds": 1.0}), "m.json")
    where, widths = NAMES.index("copy.bandwidth.bf16"), np.full(len(FACTORS), 0.04)
    off = 0.02
    exact = seen_on(machine, rows)
    fit = solve(machine, [eqx.tree_at(lambda r: r.seconds, exact, exact.seconds * np.exp(off))], widths)
    told = 0.04**2 / (0.04**2 + 0.05**2)
    assert fit.logs[where] == pytest.approx(-off * told, rel=0.01)
    assert fit.told[where] == pytest.approx(told, rel=1e-3)
    assert fit.after[0] / fit.before[0] == pytest.approx(np.exp(off * told), rel=1e-4)


def test_an_efficiency_nears_the_datasheet_and_never_exceeds_it() -> None:
    machine = load_machine("h200")
    far = moved(machine, np.full(len(FACTORS), 30.0))
    near = moved(machine, np.full(len(FACTORS), 1e-4))
    for what in ("bandwidth_efficiency", "flops_efficiency"):
        before, after, little = (np.asarray(getattr(m.curves, what)) for m in (machine, far, near))
        assert (after <= 1.0).all() and (after >= before).all()
        room = before < 0.99
        assert (after[room] > 0.99).all()
        np.testing.assert_allclose((little / before)[room], np.exp(1e-4), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(far.curves.latency / machine.curves.latency), np.exp(30.0), rtol=1e-9)
    none = np.asarray(machine.exchange.direct_efficiency) == 0
    assert none.any() and (np.asarray(far.exchange.direct_efficiency)[none] == 0).all()


def test_an_odd_row_is_not_believed() -> None:
    """Nine rows as predicted and one that took ten times as long: the factors stay within a few per cent."""
    rng = np.random.default_rng(0)
    machine = load_machine("h200")
    rows = seen_on(machine, random_rows(rng, 10))
    odd = rows.seconds.copy()
    odd[0] *= 10.0
    fit = solve(machine, [eqx.tree_at(lambda r: r.seconds, rows, odd)], prior_widths(machine))
    assert 0.0 < np.abs(fit.logs).max() < 0.05


def test_priors_are_wide_where_figures_are_assumed() -> None:
    """ln(1 + spread) / 1.2816, twice that of an assumed figure, at least 5 %."""
    machine = load_machine("rtx-pro-6000")
    widths = dict(zip(NAMES, prior_widths(machine), strict=True))
    figure, spread = machine.figure("copy.bandwidth_efficiency.bf16"), machine.figure("copy.spread.bf16").value
    assert figure.provenance == "assumed"
    assert widths["copy.bandwidth.bf16"] == pytest.approx(2 * np.log1p(spread) / 1.2816, rel=1e-4)
    assert min(widths.values()) >= 0.05
