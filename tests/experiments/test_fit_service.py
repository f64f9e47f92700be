"""The fit of engines: parameters that made some figures are found back from them, and ranges hold what they promise."""

import tomllib
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import fit_service
from experiments.fit_service import BOUNDS, Case, errors, fitted, predicted, spreads
from explorer.fidelity.runs import Pool, Run
from explorer.service.engine import ANY, FITTED, Engine, load_engine
from explorer.service.pools import Priced
from explorer.service.predict import Served
from explorer.service.queue import Clients
from explorer.service.steps import Steps
from hw.compat import in_x64

TRUE = {"fixed_share": 0.4, "step": 2e-3, "request": 2e-5, "prefill_stretch": 1.3, "launch": 2e-5, "arrival": 0.05}
RUN = Run("r", "file", "m", "M", "chip", engine="sglang", pool=Pool(1, 8), input_tokens=1024, output_tokens=512)


def machine(speed: float) -> tuple[Steps, Steps]:
    """Decode and prefill steps of some machine: the fixed part, and as much again for every so many requests."""
    loads, tokens = 2.0 ** np.arange(12), 2.0 ** np.arange(6, 18)
    fixed, launches = np.full(12, 6e-3 * speed**0.5), np.full(12, 400.0)
    decode, prefill = fixed + 5e-5 * loads * speed, fixed + 2e-5 * tokens * speed
    return tuple(  # pyright: ignore[reportReturnType]
        Steps(at, gpu, 0.9 * gpu, 1.1 * gpu, fixed, launches, at) for at, gpu in ((loads, decode), (tokens, prefill))
    )


def case(requests: int, tokens: int, speed: float) -> Case:
    decode, prefill = (Priced(8, 1, 1, 1, part) for part in machine(speed))
    clients = Clients.drawing(np.float64(requests), tokens, 512.0, 0.8)
    run = replace(RUN, concurrency=requests, input_tokens=tokens)
    return Case(run, Served(load_engine("sglang"), clients, decode, prefill, None), True)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case(n, tokens, speed) for n in (1, 8, 64, 256) for tokens in (64, 1024, 8192) for speed in (0.3, 3.0)]


@in_x64
def measured(engine: Engine, some: list[Case], noise: float = 0.0) -> list[Case]:
    """The cases with what the engine would show."""
    rng = np.random.default_rng(0)
    found = []
    for each, seen in predicted(engine, some):
        figures = {q: value * float(np.exp(noise * rng.standard_normal())) for q, (value, *_) in seen.items()}
        found.append(replace(each, run=replace(each.run, measured=figures)))
    return found


def true_engine() -> Engine:
    return replace(load_engine("sglang"), **{what: np.float64(value) for what, value in TRUE.items()})


def test_parameters_are_found_back(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 % from exact figures, where nothing pulls to the middle of the bounds."""
    monkeypatch.setattr(fit_service, "_PRIOR", 1e-4)
    jax.clear_caches()  # the prior is a constant of the compiled program
    found = fitted(load_engine("sglang"), measured(true_engine(), cases))
    for what, value in TRUE.items():
        assert float(getattr(found, what)) == pytest.approx(value, rel=0.03), what
    off = np.concatenate([errors(list(predicted(found, measured(true_engine(), cases))), q) for q in ("tpot", "ttft")])
    assert np.abs(off).max() < 0.01
    jax.clear_caches()


def test_nothing_to_fit_to_changes_nothing() -> None:
    engine = load_engine("vllm")
    assert fitted(engine, []) is engine


@in_x64
def test_parameters_stay_within_their_bounds() -> None:
    for theta in (-1e3, 0.0, 1e3):
        tuned = fit_service._with(load_engine("sglang"), jnp.full(len(FITTED), theta))
        for what, (low, high) in BOUNDS.items():
            assert low * (1 - 1e-9) <= float(getattr(tuned, what)) <= high * (1 + 1e-9)


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_ranges_hold_four_runs_of_five(cases: list[Case], noise: float) -> None:
    """Counted over the runs, of both quantities: the ops' range and the spread add up as squares."""
    noisy = measured(true_engine(), cases, noise)
    found = list(predicted(true_engine(), noisy))
    widths = spreads(found)
    for quantity, spread in widths.items():
        inside = [
            abs(np.log(seen[quantity][0] / each.run.measured[quantity]))
            <= np.hypot(np.log(seen[quantity][2] / seen[quantity][1]) / 2.0, spread) * (1 + 1e-9)
            for each, seen in found
        ]
        assert 0.75 <= np.mean(inside) <= 1.0
        assert noise < 0.1 or np.mean(inside) == pytest.approx(0.8, abs=0.05)
    assert spreads([]) == {"tpot": 0.3, "ttft": 0.3}


def test_what_is_written_is_what_is_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`other` is the geometric mean, in the widest of the ranges."""
    path = tmp_path / "engines.toml"
    monkeypatch.setattr(fit_service, "ENGINES", path)
    two = [replace(true_engine(), step=np.float64(s), spread_tpot=np.float64(w)) for s, w in ((1e-3, 0.0), (4e-3, 0.5))]
    fit_service._write({"sglang": two[0], "trtllm": two[1]})
    found = tomllib.loads(path.read_text())
    assert [found[name]["step"]["value"] for name in ("sglang", "trtllm", ANY)] == [1e-3, 4e-3, 2e-3]
    assert found[ANY]["spread_tpot"]["value"] == 0.5
    assert found[ANY]["step"]["provenance"] == "assumed" and found["sglang"]["step"]["provenance"] == "fitted"
