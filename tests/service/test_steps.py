"""Steps at many loads against the step of each load by itself."""

from dataclasses import replace

import numpy as np
import pytest

from explorer.priced import Priced, priced
from explorer.request import Phase, Request, make_request
from explorer.service.steps import Steps, steps
from hw.compat import in_x64
from layouts.layout import Layout

LOADS = np.array([1.0, 16.0, 64.0])
DENSE = ("llama-3.1-8b", "h100", 8, "attn_tp=8")
MIXTURE = ("deepseek-v3", "h200", 16, "attn_dp=2,attn_tp=8,ep=16")


def asked(case: tuple[str, str, int, str], phase: Phase = Phase.DECODE) -> tuple[Request, Layout]:
    model, hardware, gpus, layout = case
    request = make_request(model, hardware, gpus, context=4096, concurrency=1)
    return replace(request, phase=phase), request.layout(layout)


@in_x64
def alone(request: Request, layout: Layout, load: float) -> Priced:
    at = {"chunk": int(load)} if request.prefill else {"concurrency": int(load)}
    return priced(replace(request, **at), layout)


@pytest.mark.parametrize("case", [DENSE, MIXTURE], ids=lambda case: case[0])
@pytest.mark.parametrize("phase", Phase)
def test_every_load_is_the_step_of_that_load(case: tuple[str, str, int, str], phase: Phase) -> None:
    request, layout = asked(case, phase)
    found = steps(request, layout, LOADS, 4096)
    for i, load in enumerate(LOADS):
        one = alone(request, layout, load)
        assert found.gpu[i] == pytest.approx(float(one.schedule.gpu), rel=1e-9)
        assert found.running[i] == pytest.approx(float(one.held.running) * layout.attn_dp)
        if not one.on_host:
            assert (found.fast[i], found.slow[i]) == (pytest.approx(one.faster), pytest.approx(one.slower))
        assert found.fast[i] < found.gpu[i] < found.slow[i]


def test_contexts_by_load() -> None:
    request, layout = asked(DENSE)
    found = steps(request, layout, LOADS[:2], np.array([1024.0, 8192.0]))
    for i, context in enumerate((1024, 8192)):
        same = steps(replace(request, context=context), layout, LOADS[i : i + 1], context)
        assert found.gpu[i] == pytest.approx(same.gpu[0], rel=1e-12)


@in_x64
def test_what_is_fixed_is_what_latencies_make_of_a_step() -> None:
    """Without them the rest is left. Of a dense model everything is in line: as many launches as ops that run."""
    request, layout = asked(DENSE)
    found = steps(request, layout, LOADS, 4096)
    machine = request.machine
    free = replace(
        machine,
        curves=replace(machine.curves, latency=0.0 * machine.curves.latency),
        exchange=replace(machine.exchange, latency=0.0 * machine.exchange.latency),
    )
    rest = steps(replace(request, machine=free), layout, LOADS, 4096)
    np.testing.assert_allclose(found.fixed + rest.gpu, found.gpu, rtol=1e-9)
    np.testing.assert_allclose(rest.fixed, 0.0, atol=1e-12)
    assert (found.fixed > 0.0).all() and (found.fixed < found.gpu).all()
    one = alone(request, layout, LOADS[1])
    run = one.counts[one.parts.seconds > 0.0].sum()
    assert found.launches[1] == pytest.approx(run)


def test_a_layout_of_replicas_is_priced_by_replica() -> None:
    request, layout = asked(("llama-3.1-8b", "h100", 8, "replicas=2,attn_tp=4"))
    half = make_request("llama-3.1-8b", "h100", 4, context=4096, concurrency=1)
    for phase in Phase:
        both = steps(replace(request, phase=phase), layout, LOADS, 4096)
        one = steps(replace(half, phase=phase), half.layout("attn_tp=4"), LOADS, 4096)
        np.testing.assert_allclose(both.gpu, one.gpu, rtol=1e-9)
        np.testing.assert_allclose(both.running, one.running)


def table() -> Steps:
    column = np.array([1.0, 2.0, 5.0])
    return Steps(np.array([1.0, 2.0, 4.0]), column, 0.5 * column, 3.0 * column, 0.1 * column, 10 * column, column)


@in_x64
def test_between_loads_and_beyond_them() -> None:
    """1 s up to load 1, 2 s at 2, 5 s at 4: 1.5 s a request from there on."""
    at = table().at(np.array([0.5, 1.5, 3.0, 6.0]))
    np.testing.assert_allclose(at.gpu, [1.0, 1.5, 3.5, 8.0])
    np.testing.assert_allclose(at.launches, [10.0, 15.0, 35.0, 80.0])
    assert float(table().capacity) == 5.0


@in_x64
def test_the_ends_of_the_range_take_what_is_fixed_along() -> None:
    slow = table().with_seconds("slow")
    np.testing.assert_allclose(slow.gpu, [3.0, 6.0, 15.0])
    np.testing.assert_allclose(slow.fixed, [0.3, 0.6, 1.5])
    np.testing.assert_allclose(slow.launches, table().launches)
    same = table().with_seconds("gpu")
    np.testing.assert_allclose(same.fixed, table().fixed)
