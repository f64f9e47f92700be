"""The queue against a simulation of it, against hand arithmetic, and against what no queue may break."""

import dataclasses
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.service.engine import FITTED, Engine, Policy, load_engine
from explorer.service.queue import (
    Clients,
    Latency,
    aggregated,
    decode_step,
    disaggregated,
    latency,
    prefill_step,
)
from explorer.service.steps import Steps
from hw.compat import in_x64
from hw.programs import compiled
from tests.service.samples import level_steps, plain_engine, token_steps
from tests.service.simulation import Server, drawn, simulate

STEP, PROMPT, ROUNDS = 0.01, 512, 10
_latency = compiled(latency)


@in_x64
def predicted(engine: Engine, clients: Clients, decode: Steps, prefill: Steps, **pools: Any) -> Latency:
    """As NumPy, in 64 bits."""
    stated = {"groups": 1.0, "stages": 1.0, "workers": None, **pools}
    arrays: dict[str, Any] = {
        name: None if value is None else jax.tree.map(np.float64, value) for name, value in stated.items()
    }
    return jax.device_get(_latency(engine, clients, decode, prefill, **arrays))


def of(requests: float, output: float = 100.0, shortest: float = 1.0, **changes: Any) -> Clients:
    return dataclasses.replace(Clients.drawing(np.float64(requests), PROMPT, output, shortest), **changes)


def total(seen: Latency, output: float) -> float:
    return float(seen.ttft + output * seen.tpot)


# Largest errors, TTFT and TPOT, while prompts take at most half of a round: with one prompt a chunk, and with four.
# Steps that prompts ride along with are not in the first token of the formula, nor are prompts that share a chunk.
TOLERANCE = {
    (Policy.PREFILL_FIRST, 1): (0.10, 0.03),
    (Policy.PREFILL_FIRST, 4): (0.26, 0.13),
    (Policy.MIXED, 1): (0.45, 0.03),
    (Policy.MIXED, 4): (0.72, 0.22),
}
GRID = list(itertools.product((1.0, 0.8, 0.2), (1, 2, 8, 32), (0.02, 0.1, 0.5), (50, 200)))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("prompts_a_chunk", [1, 4])
def test_means_are_those_of_a_simulation(policy: Policy, prompts_a_chunk: int) -> None:
    """Loads of which prompts take from 1 % to 97 % of the time, lengths that are equal or drawn; 288 in all.

    A client of the simulation sends when a step has ended, one of the formula half a step later on average. Where
    prompts take more than half, the formula has them wait for each other longer than they do; the rate holds.
    """
    server = plain_engine(policy, PROMPT * prompts_a_chunk)
    errors, rates, shares = [], [], []
    for shortest, requests, prompt, output in GRID:
        lengths = [drawn(requests, ROUNDS, longest, shortest, seed) for longest, seed in ((PROMPT, 1), (output, 2))]
        seen = simulate(Server(policy, STEP, prompt / PROMPT, server.chunk, 10**6), *lengths)
        found = predicted(server, of(requests, output, shortest), level_steps(STEP), token_steps(prompt / PROMPT))
        errors.append(((float(found.ttft) - STEP / 2) / seen.ttft - 1.0, float(found.tpot) / seen.tpot - 1.0))
        whole = total(found, (1.0 + shortest) / 2.0 * output)
        rates.append(requests * ROUNDS / seen.end * whole / requests - 1.0)
        shares.append(float(found.prefill_share))
    off = np.abs(errors)[np.array(shares) <= 0.5]
    assert len(off) > 40
    assert (off.max(axis=0) < TOLERANCE[policy, prompts_a_chunk]).all(), off.max(axis=0)
    assert (off.mean(axis=0) < (0.22, 0.02)).all(), off.mean(axis=0)
    assert np.abs(rates).max() < 0.3 and np.abs(rates).mean() < 0.06, (np.abs(rates).max(), np.abs(rates).mean())


@pytest.mark.parametrize(("requests", "capacity"), [(8, 2), (32, 8), (12, 8)])
def test_clients_that_do_not_fit_wait(requests: int, capacity: int) -> None:
    """Rate and TPOT are those of the clients that fit; by Little's law the rest of the time is spent waiting."""
    prompt, output = 0.1, 100
    lengths = [drawn(requests, ROUNDS, longest, 0.8, seed) for longest, seed in ((PROMPT, 1), (output, 2))]
    server = Server(Policy.PREFILL_FIRST, STEP, prompt / PROMPT, PROMPT, capacity)
    seen = simulate(server, *lengths)
    parts = (level_steps(STEP, capacity), token_steps(prompt / PROMPT))
    found = predicted(plain_engine(), of(requests, output, 0.8), *parts)
    fitting = predicted(plain_engine(), of(capacity, output, 0.8), *parts)
    mean = 0.9 * output
    assert found.running == capacity and found.tpot == pytest.approx(fitting.tpot)
    assert total(found, mean) == pytest.approx(total(fitting, mean) * requests / capacity)
    assert requests / total(found, mean) == pytest.approx(requests * ROUNDS / seen.end, rel=0.15)
    assert found.ttft == pytest.approx(seen.ttft, rel=0.25)
    assert found.tpot == pytest.approx(seen.tpot, rel=0.15)


def test_a_round_of_the_simulation_by_hand() -> None:
    """Three equal clients: 3 prompts of 0.1 s and 5 steps of 0.01 s a round, first tokens after 0.1 to 0.3 s."""
    lengths = np.full((3, 2), 10), np.full((3, 2), 5)
    seen = simulate(Server(Policy.PREFILL_FIRST, 0.01, 0.01, 10, 99), *lengths)
    assert seen.end == pytest.approx(2 * (3 * 0.1 + 5 * 0.01))
    assert (seen.ttft, seen.steps) == (pytest.approx(0.2), 10)
    assert seen.tpot == pytest.approx((0.1 + 0.05) / 5)
    # a chunk a step, beside the steps of those that have their prompt done: 0.1, 0.21, 0.32
    mixed = simulate(Server(Policy.MIXED, 0.01, 0.01, 10, 99), *(part[:, :1] for part in lengths))
    assert mixed.ttft == pytest.approx((0.1 + 0.21 + 0.32) / 3)


loads = st.tuples(
    st.sampled_from(list(Policy)), st.integers(1, 200), st.floats(1e-3, 1.0), st.integers(2, 2000), st.floats(0.05, 1.0)
)


@given(loads)
def test_a_round_is_its_prompts_and_one_answer(load: tuple[Policy, int, float, int, float]) -> None:
    """n x prompt + output x step, exactly, however it is split between the first token and the others."""
    policy, requests, prompt, output, shortest = load
    found = predicted(
        plain_engine(policy), of(requests, output, shortest), level_steps(STEP), token_steps(prompt / PROMPT)
    )
    mean = (1.0 + shortest) / 2.0
    round_ = mean * (requests * prompt + output * STEP)
    alone = predicted(plain_engine(policy), of(1, output, shortest), level_steps(STEP), token_steps(prompt / PROMPT))
    assert alone.ttft == pytest.approx(mean * prompt + STEP / 2)
    assert found.prefill_share == pytest.approx(mean * requests * prompt / round_)
    assert found.ttft - STEP / 2 + mean * output * found.tpot == pytest.approx(round_, rel=1e-9)


@given(loads, st.sampled_from(["requests", "prompt", "output", "step", "capacity"]), st.floats(1.0, 4.0))
def test_more_to_do_is_never_faster(load: tuple[Policy, int, float, int, float], what: str, factor: float) -> None:
    policy, requests, prompt, output, shortest = load
    asked = {"requests": requests, "prompt": prompt, "output": output, "step": STEP, "capacity": requests / 1.5}

    def see(stated: dict[str, float]) -> tuple[float, float, float]:
        clients = of(stated["requests"], stated["output"], shortest)
        clients = dataclasses.replace(clients, output_tokens=np.float64(stated["output"]))
        parts = level_steps(stated["step"], max(stated["capacity"], 1)), token_steps(stated["prompt"] / PROMPT)
        found = predicted(plain_engine(policy), clients, *parts)
        return float(found.ttft), float(found.tpot), total(found, stated["output"])

    more = asked | {what: asked[what] / factor if what == "capacity" else asked[what] * factor}
    (ttft, tpot, whole), (ttft_, tpot_, whole_) = see(asked), see(more)
    assert whole_ >= whole * (1 - 1e-9)
    if what in ("requests", "prompt", "step"):
        assert ttft_ >= ttft * (1 - 1e-9)
    if what in ("requests", "step"):
        assert tpot_ >= tpot * (1 - 1e-9)


@compiled
@eqx.filter_grad
def slopes(parts: tuple[Engine, Steps, Steps], clients: Clients, workers: tuple[float, float] | None) -> jax.Array:
    found = latency(parts[0], clients, *parts[1:], 2.0, 1.0, workers)
    return jnp.log(found.ttft) + jnp.log(found.tpot)


@pytest.mark.parametrize("name", ["sglang", "trtllm"])
@pytest.mark.parametrize("workers", [None, (2.0, 3.0)])
@in_x64
def test_slopes_are_finite(name: str, workers: tuple[float, float] | None) -> None:
    """By every parameter of the engine and by the seconds of the steps; what adds work slows something down.

    A launch may not: one that only a prompt alone waits for moves time from between the tokens to before the first.
    """
    prefill = dataclasses.replace(token_steps(1e-4), launches=np.full(3, 100.0))
    parts = jax.tree.map(jnp.asarray, (load_engine(name).anonymous(), level_steps(STEP, 64.0), prefill))
    for requests, shortest in itertools.product((1.0, 4.0, 500.0), (0.5, 1.0)):
        engine, decode, prefill = slopes(parts, of(requests, 100.0, shortest), workers)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((engine, decode, prefill)))
        by = {what: float(getattr(engine, what)) for what in FITTED if what != "launch"}
        assert min(by.values()) > 0, (requests, shortest, by)
        assert decode.gpu.sum() > 0 and prefill.gpu.sum() > 0


def test_steps_by_hand() -> None:
    """10 ms of which 1 ms is fixed; a quarter of it is left, 2 ms are added, and 10 us a request."""
    engine = plain_engine(fixed_share=0.25, step=2e-3, request=1e-5, prefill_stretch=1.5, launch=4e-3)
    assert float(decode_step(engine, level_steps(STEP), 8.0)) == pytest.approx(0.01 - 0.75e-3 + 2e-3 + 8e-5)
    prefill = dataclasses.replace(token_steps(2e-3 / 64), launches=np.ones(3))
    assert float(prefill_step(engine, prefill, 64.0)) == pytest.approx(5e-3)  # hypot(3 ms, 4 ms)


def test_chunks_of_groups_and_stages_by_hand() -> None:
    """A prompt of 512 tokens, 1 ms a token, chunks of 256: two of 256 ms; a group of four has a chunk of its own."""
    parts = (of(1), level_steps(STEP), token_steps(1e-3))

    def ttft(engine: Engine, **pools: float) -> float:
        return float(predicted(engine, *parts, **pools).ttft) - STEP / 2

    whole, by_group = (plain_engine(chunk=256, chunk_by_group=each) for each in (False, True))
    assert ttft(whole) == pytest.approx(0.512)
    assert ttft(by_group, groups=4.0) == pytest.approx(2 * 4 * 0.256)  # as slow as if all four were at work
    assert ttft(whole, groups=4.0) == pytest.approx(8 * 4 * 0.064)  # 64 tokens of it a step
    assert ttft(whole, stages=2.0) == pytest.approx(0.256 * 1.5)  # the second chunk leaves half a pass later


def test_accepted_drafts_divide_the_steps() -> None:
    plain, drafting = (
        predicted(plain_engine(), of(1, accept=np.float64(a)), level_steps(STEP), token_steps(1e-5)) for a in (1, 2.5)
    )
    assert plain.tpot == pytest.approx(STEP)
    assert drafting.tpot == pytest.approx(STEP / 2.5)


def apart(requests: float, prompt: float, output: float = 100.0, capacity: float = 1e9, **pools: Any) -> Latency:
    stated = {"workers": (1.0, 1.0), **pools}
    return predicted(
        plain_engine(), of(requests, output), level_steps(STEP, capacity), token_steps(prompt / PROMPT), **stated
    )


def test_one_client_of_two_pools() -> None:
    found = apart(1, 0.1)
    assert (found.ttft, found.tpot, found.step) == (pytest.approx(0.1), pytest.approx(STEP), pytest.approx(STEP))
    assert found.running == pytest.approx(1.0 / 1.1)  # 1 s of answer in a cycle of 1.1 s
    assert found.prefill_share == pytest.approx(0.1 / 1.1)


@pytest.mark.parametrize(
    ("pools", "seconds"), [({}, 0.1), ({"workers": (2.0, 1.0)}, 0.05), ({"stages": 2.0}, 0.05)], ids=str
)
def test_pools_that_cannot_keep_up(pools: dict[str, Any], seconds: float) -> None:
    """64 clients whose prompts take 0.1 s come every 0.1 s; on two workers, or in two stages, twice as often."""
    found = apart(64, 0.1, **pools)
    assert total(found, 100) == pytest.approx(64 * seconds)
    assert (found.prefill_share, found.tpot) == (pytest.approx(1.0), pytest.approx(STEP))
    assert found.running == pytest.approx(1.0 / seconds)


def test_kv_that_is_full_holds_requests_back() -> None:
    """16 of 64 clients fit on two decode workers: 16 answers a second, by Little's law 4 s for each request."""
    found = apart(64, 0.001, capacity=8.0, workers=(1.0, 2.0))
    assert found.running == pytest.approx(16.0)
    assert total(found, 100) == pytest.approx(4.0)


@in_x64
def test_either_is_what_it_says() -> None:
    parts = (plain_engine(), of(4), level_steps(STEP), token_steps(1e-4))
    one, two = aggregated(*parts), disaggregated(*parts)
    jax.tree.map(np.testing.assert_allclose, predicted(*parts), jax.device_get(one))
    jax.tree.map(np.testing.assert_allclose, predicted(*parts, workers=(1.0, 1.0)), jax.device_get(two))
