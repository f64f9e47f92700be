"""Elasticities against finite differences of the exact step, and against Euler's rule for what scales together."""

import json
from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest

from explorer.elasticity import Sensitivity, critical_weights, sensitivity
from explorer.evaluate import Tables
from explorer.priced import priced
from explorer.request import Request, make_request
from hw.compat import x64
from hw.machine import Machine
from hw.work import COLLECTIVES, FAMILIES, RATES, CollectiveKind, Family, Rate

LAYOUTS = ("attn_dp=16,ep=16", "attn_dp=2,dcp=8,ep=16", "attn_tp=16,ep=16,dispatch=all_gather")
RATE_FIGURES = {"hbm_bandwidth", "peak.bf16", "peak.fp8", "peak.fp4", "link_bandwidth", "nic_bandwidth"}


@pytest.fixture(scope="module")
def request_() -> Request:
    return make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=256, verify_width=5)


@pytest.fixture(scope="module")
def found(request_: Request) -> dict[str, Sensitivity]:
    tables = Tables(request_.model)
    return {text: sensitivity(request_, request_.layout(text), tables) for text in LAYOUTS}


def elasticities(result: Sensitivity) -> dict[str, float]:
    return {row.parameter: row.elasticity for row in result.rows}


def scaled(machine: Machine, path: str, factor: float) -> Machine:
    """The machine with one figure multiplied."""
    name, *rest = path.split(".")
    with x64():
        if not rest:
            return eqx.tree_at(lambda m: getattr(m, name), machine, getattr(machine, name) * factor)
        if name == "peak":
            at = machine.peak.at[RATES.index(Rate(rest[0]))].multiply(factor)
            return eqx.tree_at(lambda m: m.peak, machine, at)
        if name in set(COLLECTIVES):
            values = getattr(machine.exchange, rest[0]).at[COLLECTIVES.index(CollectiveKind(name))].multiply(factor)
            return eqx.tree_at(lambda m: getattr(m.exchange, rest[0]), machine, values)
        place = FAMILIES.index(Family(name)), RATES.index(Rate(rest[1]))
        values = getattr(machine.curves, rest[0]).at[place].multiply(factor)
        return eqx.tree_at(lambda m: getattr(m.curves, rest[0]), machine, values)


@pytest.mark.parametrize("text", LAYOUTS)
def test_hardware_rows_are_finite_differences_of_the_step(request_: Request, found: dict[str, Sensitivity], text: str):
    layout, tables, change = request_.layout(text), Tables(request_.model), 1e-6
    for row in found[text].rows:
        if row.parameter in ("context", "concurrency", "verify_width", "accept_length"):
            continue
        up, down = (
            priced(
                replace(request_, machine=scaled(request_.machine, row.parameter, 1 + sign * change)), layout, tables
            ).step
            for sign in (1, -1)
        )
        measured = (up - down) / (2 * change) / found[text].step_seconds
        assert row.elasticity == pytest.approx(measured, rel=1e-4, abs=1e-8), row.parameter


@pytest.mark.parametrize("text", LAYOUTS)
def test_rates_and_latencies_together_are_the_step(found: dict[str, Sensitivity], text: str):
    """All rates twice as fast and all latencies half as long halve the step: degree -1 in rates, 1 in latencies."""
    rows = elasticities(found[text])
    rates = sum(e for name, e in rows.items() if name in RATE_FIGURES)
    latencies = sum(e for name, e in rows.items() if "latency" in name)
    assert 0 < latencies < 1
    assert rates == pytest.approx(latencies - 1, abs=1e-9)
    # and each chip figure is what the efficiencies that multiply it are together
    memory = sum(e for name, e in rows.items() if ".bandwidth_efficiency" in name)
    copied = sum(e for name, e in rows.items() if ".copy_bytes" in name)
    assert memory - copied == pytest.approx(rows["hbm_bandwidth"], rel=1e-9)


def test_context_is_linear_between_roundings(request_: Request, found: dict[str, Sensitivity]):
    text = LAYOUTS[0]
    layout = request_.layout(text)
    longer = priced(replace(request_, context=100_001), layout).step
    measured = (longer - found[text].step_seconds) * 100_000 / found[text].step_seconds
    assert elasticities(found[text])["context"] == pytest.approx(measured, rel=1e-6)


@pytest.mark.parametrize("text", LAYOUTS)
def test_critical_weights_carry_the_whole_step(request_: Request, text: str):
    timed = priced(request_, request_.layout(text))
    # seconds of an op are those of its mean execution, and contention differs from position to position
    assert critical_weights(timed) @ timed.parts.seconds == pytest.approx(timed.step, rel=1e-3)
    assert np.all(critical_weights(timed) <= timed.counts)


def test_active_names_branch_ops_and_waves(found: dict[str, Sensitivity]):
    """16 requests of 5 rows and 96 heads launch 160 CTAs on 148 SMs: two waves (facts, MLA decode split)."""
    active = {row.parameter: row.active for row in found["attn_dp=16,ep=16"].rows}
    assert active["peak.fp8"].startswith("compute of mla_decode (2 waves)")
    assert active["copy_gather.link_efficiency"] == "link of weight_all_gather"
    assert "w13" in active["grouped_gemm_packed.bandwidth_efficiency.fp8"]
    assert "16 requests a group in a graph of 16" in active["concurrency"]


def test_rows_fall_and_are_not_zero_but_for_the_load(found: dict[str, Sensitivity]):
    for result in found.values():
        sizes = [abs(row.elasticity) for row in result.rows]
        assert sizes == sorted(sizes, reverse=True)
        zeros = {row.parameter for row in result.rows if row.elasticity == 0}
        assert zeros <= {"concurrency", "accept_length", "verify_width"}
    assert "all_to_all.latency" in elasticities(found["attn_dp=2,dcp=8,ep=16"])
    assert "all_to_all.latency" not in elasticities(found["attn_dp=16,ep=16"])


def test_nothing_but_the_host_counts_where_it_is_longer():
    request = make_request("llama-3.1-8b", "b300", 8, context=16)
    rows = [r for r in sensitivity(request, request.layout("attn_dp=2")).rows if r.elasticity]
    assert [(row.parameter, row.elasticity) for row in rows] == [("host_seconds", 1.0)]


def test_document_is_the_schema(found: dict[str, Sensitivity]):
    document = found[LAYOUTS[0]].document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "sensitivity/1"
    assert {"parameter", "value", "elasticity", "active"} <= document["rows"][0].keys()
    values = {row["parameter"]: row["value"] for row in document["rows"]}
    assert values["hbm_bandwidth"] == 7.7e12
