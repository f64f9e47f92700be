"""Quantities of runs with their ranges, from what a run states and from nothing that was measured."""

from dataclasses import replace

import numpy as np
import pytest

from explorer.fidelity.runs import Interval, Pool, Run
from explorer.request import Phase
from explorer.service import predict as module
from explorer.service.predict import predict, ranged, served
from hw.errors import MeshwrightError
from tests.service.samples import level_steps, token_steps
from tests.service.test_pools import DENSE, MIXTURE, TEXT

APART = replace(DENSE, mode="disagg", pool=None, prefill=Pool(2, 1), decode=Pool(3, 2), concurrency=48)
QUANTITIES = {
    "serve": ("tpot", "ttft", "itl_median", "step", "tokens_per_second_per_gpu"),
    "decode": ("step", "tpot", "tokens_per_second_per_gpu"),
    "prefill": ("step", "ttft", "tokens_per_second_per_gpu"),
}


@pytest.mark.parametrize("run", [DENSE, TEXT, APART, MIXTURE], ids=["pool", "text", "apart", "mixture"])
@pytest.mark.parametrize("phase", QUANTITIES)
def test_every_quantity_of_every_phase(run: Run, phase: str) -> None:
    found = predict(replace(run, phase=phase))
    assert tuple(found) == QUANTITIES[phase]
    for interval in found.values():
        assert 0 < interval.low < interval.value < interval.high < np.inf


def test_only_what_was_measured_is_asked_for() -> None:
    assert tuple(predict(replace(DENSE, measured={"ttft": 1.0}))) == ("ttft",)


@pytest.mark.parametrize("run", [DENSE, APART, replace(TEXT, concurrency=None)], ids=["pool", "apart", "saturated"])
def test_figures_are_never_looked_at(run: Run) -> None:
    blind = replace(run, measured=dict.fromkeys(QUANTITIES["serve"], np.nan))
    seen = replace(run, measured=dict.fromkeys(QUANTITIES["serve"], 1e-9))
    assert predict(blind) == predict(seen) == predict(run)


def test_quantities_hang_together() -> None:
    """Of one run: the rate is Little's law, a token takes a step over what it accepts."""
    run = replace(DENSE, verify_width=4, accept_length=2.5)
    found = {name: interval.value for name, interval in predict(run).items()}
    seconds = found["ttft"] + 200 * found["tpot"]
    assert found["tokens_per_second_per_gpu"] == pytest.approx(8 * 200 / seconds / 2)
    assert found["itl_median"] == pytest.approx(found["step"] / 2.5)
    assert found["tpot"] >= found["itl_median"]
    decode = {name: interval.value for name, interval in predict(replace(run, phase="decode")).items()}
    assert decode["tokens_per_second_per_gpu"] == pytest.approx(8 / decode["tpot"] / 2)
    prefill = {name: interval.value for name, interval in predict(replace(run, phase="prefill")).items()}
    assert prefill["tokens_per_second_per_gpu"] == pytest.approx(8192 / prefill["step"] / 2)


def test_workers_share_the_clients() -> None:
    """Two workers of 8 clients each are one worker of 8, a GPU at a time; so are two replicas."""
    one, two = predict(DENSE), predict(replace(DENSE, pool=Pool(2, 2), concurrency=16))
    assert one == two
    copies = predict(replace(TEXT, layout="replicas=2,attn_tp=2", stated_gpus=4, concurrency=16))
    text = predict(TEXT)
    for name in QUANTITIES["serve"]:
        assert copies[name].value == pytest.approx(text[name].value, rel=1e-9)


def test_a_text_without_a_load_is_saturated() -> None:
    found = served(replace(TEXT, concurrency=None))
    assert float(found.clients.requests) == float(found.decode.steps.capacity) > 100  # pyright: ignore[reportArgumentType]


def test_pools_apart_are_two_questions() -> None:
    found = served(APART)
    assert found.workers == (2.0, 3.0)
    assert (found.prefill.gpus, found.decode.gpus) == (1, 2)
    assert served(DENSE).workers is None
    rate = predict(replace(APART, concurrency=1))["tokens_per_second_per_gpu"].value
    alone = predict(replace(APART, concurrency=1, prefill=Pool(1, 1), decode=Pool(1, 2)))
    assert rate == pytest.approx(alone["tokens_per_second_per_gpu"].value * 3 / 8, rel=0.02)


@pytest.mark.parametrize("quantity", ["tpot", "ttft"])
def test_ranges_widen_with_the_machine_s_and_with_the_engine_s(quantity: str) -> None:
    found = served(replace(DENSE, shortest=0.8))

    def width(wide: float, spread: float) -> float:
        gpu = found.decode.steps.gpu
        ends = {"fast": gpu / wide, "slow": gpu * wide}
        prefill = {"fast": found.prefill.steps.gpu / wide, "slow": found.prefill.steps.gpu * wide}
        changed = replace(
            found,
            engine=replace(found.engine, spread_tpot=spread, spread_ttft=spread),
            decode=replace(found.decode, steps=replace(found.decode.steps, **ends)),
            prefill=replace(found.prefill, steps=replace(found.prefill.steps, **prefill)),
        )
        interval = module._QUANTITIES["serve"][quantity].interval(changed)
        return float(np.log(interval.high / interval.low))

    assert width(1.0 + 1e-9, 0.2) == pytest.approx(0.4, rel=1e-6)
    assert width(1.0 + 1e-9, 0.2) < width(1.1, 0.2) < width(1.5, 0.2) < width(1.5, 0.4)


def test_a_range_by_hand() -> None:
    """Ends a factor of e^0.3 apart and a spread of 0.4: 0.5 as logarithms, whichever end comes first."""
    expected = (1.0, pytest.approx(np.exp(-0.5)), pytest.approx(np.exp(0.5)))
    for ends in ([np.exp(-0.3), np.exp(0.3)], [np.exp(0.3), np.exp(-0.3)]):
        found = ranged(1.0, ends, 0.4)
        assert (found.value, found.low, found.high) == expected
    assert ranged(2.0, [2.0, 2.0], 0.0) == Interval(2.0, 2.0, 2.0)


def test_a_pool_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.priced

    def full(asked: object) -> object:
        prefill = asked.phase is Phase.PREFILL  # pyright: ignore[reportAttributeAccessIssue]
        steps = token_steps(1e-5) if prefill else level_steps(0.01, 0.0)
        return replace(real(asked), steps=steps)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "priced", full)
    with pytest.raises(MeshwrightError, match="holds no request"):
        predict(DENSE)
