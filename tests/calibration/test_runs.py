"""Recorded steps as observations, and that three runs do not make the predictions of others worse."""

import pathlib
import zlib
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from explorer.calibration.answer import calibrate
from explorer.calibration.factors import FACTORS, adjusted, prior_widths
from explorer.calibration.lowered import LoweredStep, lowered
from explorer.calibration.observed import CalibrationError
from explorer.calibration.solve import solve
from explorer.calibration.traced import TracedStep, traced_step
from explorer.evaluate import Tables
from explorer.priced import Priced, priced
from explorer.request import Request, make_request
from explorer.traces.chrome import write_chrome
from explorer.traces.export import predicted_document, predicted_trace
from explorer.traces.reading import read_trace
from hw.compat import x64
from hw.machine import Machine
from hw.programs import compiled

DP, FEW = "attn_dp=16,ep=16", "attn_dp=2,ep=16"
NOISES, DRAWS = 8, 64  # of 64 draws a share is known to 0.06
RUNS = ((DP, 4096, 256), (FEW, 16384, 32), (DP, 32768, 64))
OTHERS = (
    *(("attn_dp=4,ep=16", 8192, 128), (DP, 1024, 1024), (FEW, 65536, 16)),
    *(("attn_tp=16,ep=1", 4096, 8), ("attn_dp=8,ep=16", 30000, 512)),
)
Run = tuple[str, int, int]
_adjusted = compiled(adjusted)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(asked(RUNS[0]).model)


def asked(run: Run) -> Request:
    return make_request("deepseek-v3", "h200", 16, context=run[1], concurrency=run[2])


def on(run: Run, machine: Machine, tables: Tables) -> Priced:
    request = replace(asked(run), machine=machine)
    return priced(request, request.layout(run[0]), tables)


def recorded(run: Run, machine: Machine, tables: Tables) -> TracedStep:
    """What calibration sees of a run that took on this machine exactly what is predicted for it."""
    request = asked(run)
    trace = predicted_trace(on(run, machine, tables))
    return traced_step("step.json", trace, request, request.layout(run[0]), tables=tables)


def moved(machine: Machine, logs: np.ndarray) -> Machine:
    with x64():
        numbers = _adjusted(machine.anonymous(), jnp.asarray(logs))
    return replace(numbers, name=machine.name, sources=machine.sources)


def test_a_step_is_seen_as_it_is_predicted(tables: Tables) -> None:
    """A prediction written as a trace: every quantity of it is predicted to the nanosecond that it was written in."""
    machine = asked(RUNS[0]).machine
    seen = recorded(RUNS[0], machine, tables)
    assert not seen.left_out
    assert seen.names[-2:] == ("step: communication kernels", "step: anything runs")
    assert sum(name.endswith("main stream, a layer") for name in seen.names) == len(seen.names) - 2 >= 3
    with x64():
        np.testing.assert_allclose(compiled(seen.predict)(machine, jnp.ones(())), seen.seconds, rtol=2e-4)


def test_gathers_of_weights_are_seen_apart(tables: Tables) -> None:
    request = asked(RUNS[0])
    seen = recorded((f"{DP},weight_shard=8,weight_shard_layers=3-60", *RUNS[0][1:]), request.machine, tables)
    gathers = {name: t for name, t in zip(seen.names, seen.seconds, strict=True) if "gathers" in name}
    assert list(gathers) == ["MLA + MoE: gathers, a layer"]
    with x64():
        predicted = compiled(seen.predict)(request.machine, jnp.ones(()))
    np.testing.assert_allclose(predicted, seen.seconds, rtol=2e-4)
    widths = np.full(len(FACTORS), 0.1)
    fit = solve(request.machine, [eqx.tree_at(lambda s: s.seconds, seen, seen.seconds * 1.1)], widths)
    copies = [factor.name for factor in FACTORS].index("copy_gather.link")
    assert np.exp(fit.logs[copies]) == pytest.approx(1 / 1.1, abs=0.02)


def test_a_file_of_another_model_has_nothing_to_say(tables: Tables, tmp_path: pathlib.Path) -> None:
    request = make_request("llama-3.1-8b", "h200", 8)
    path = tmp_path / "step.json"
    write_chrome(predicted_document(priced(request, request.layout("attn_tp=8"))), path)
    other = asked(RUNS[0])
    seen = traced_step(path, read_trace(path), other, other.layout(DP), tables=tables)
    assert all(name.partition(":")[0] in ("head", "tail") for name in seen.names)
    assert seen.left_out[0] == "kinds of layers that the model does not have: GQA + dense"
    assert "the step as a whole" in seen.left_out[1]
    assert seen.date != "unknown"
    with pytest.raises(CalibrationError, match="nothing was measured: give at least one file with --from"):
        calibrate(other.machine, [])


@pytest.fixture(scope="module")
def others(tables: Tables) -> list[LoweredStep]:
    requests = [(asked(run), run[0]) for run in OTHERS]
    return [lowered(request, request.layout(text), tables) for request, text in requests]


@compiled
def seconds_of(step: LoweredStep, machine: Machine) -> jax.Array:
    return step.schedule(machine).step


def steps(others: list[LoweredStep], machine: Machine) -> np.ndarray:
    with x64():
        return np.array([float(seconds_of(step, machine.anonymous())) for step in others])


def noisy(runs: list[TracedStep], machine: Machine, rng: np.random.Generator) -> list[TracedStep]:
    with x64():
        exact = [np.asarray(_seen(run, machine.anonymous())) for run in runs]
    noise = [np.exp(0.05 * rng.normal(size=len(t))) for t in exact]
    return [eqx.tree_at(lambda r: r.seconds, r, t * n) for r, t, n in zip(runs, exact, noise, strict=True)]


def drawn(draw: int) -> np.ndarray:
    """A normal number for each factor, by its name: a family that is added later changes none of the others."""
    names = [zlib.crc32(factor.name.encode()) for factor in FACTORS]
    return np.array([np.random.default_rng([name, draw]).normal() for name in names])


@compiled
def _seen(run: TracedStep, machine: Machine) -> jax.Array:
    return run.predict(machine, jnp.ones(()))


def test_three_runs_help_or_do_not_hurt_others(tables: Tables, others: list[LoweredStep]) -> None:
    """Machines drawn from the priors, three of their runs recorded with 5 % of noise; then five other runs, of other
    layouts, contexts and loads: nearer to the truth on the average of each, and in most of the draws."""
    machine = asked(RUNS[0]).machine
    widths, rng = prior_widths(machine), np.random.default_rng(11)
    runs = [recorded(run, machine, tables) for run in RUNS]
    public, before, after = steps(others, machine), [], []
    for draw in range(DRAWS):
        true = moved(machine, drawn(draw) * widths)
        fit = solve(machine, noisy(runs, true, rng), widths)
        there = steps(others, true)
        before.append(np.abs(np.log(public / there)))
        after.append(np.abs(np.log(steps(others, moved(machine, np.asarray(fit.logs[:-1]))) / there)))
    before, after = np.array(before), np.array(after)
    assert (after.mean(axis=0) < before.mean(axis=0)).all()
    assert after.mean() < 0.8 * before.mean()
    # 72 % of 192 draws: where the public curves happen to be right, noise of 5 % can only harm (8 draws had shown 75 %)
    assert (after.mean(axis=1) < before.mean(axis=1)).mean() > 0.6


def test_three_runs_of_the_public_machine_move_others_by_little(tables: Tables, others: list[LoweredStep]) -> None:
    """Where the public fits are right already, 5 % of noise on three runs costs the others at most half of that."""
    machine = asked(RUNS[0]).machine
    widths, rng = prior_widths(machine), np.random.default_rng(12)
    runs = [recorded(run, machine, tables) for run in RUNS]
    public, off = steps(others, machine), []
    for _ in range(NOISES):
        fit = solve(machine, noisy(runs, machine, rng), widths)
        off.append(np.abs(np.log(steps(others, moved(machine, np.asarray(fit.logs[:-1]))) / public)))
    assert 0.0 < np.mean(off) < 0.0125
    assert np.max(off) < 0.025
