"""The kernel of linear attention, in interpret mode: against float64 on ragged requests, and in whole decoders."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.errors import MeshwrightError
from layouts.decoder.choices import state_form
from layouts.kda.chunked import Writes
from layouts.kda.kernel import advance_and_solve
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from layouts.kernels import ALL_PLAIN, INTERPRETED, PLAIN, Choice, Kernels
from layouts.layout import Layout
from layouts.text import parse
from tests.layouts.decoding import SCORED, error, golden, session_of, teacher_forced

RING, HEADS, SLOTS = 5, 2, 7


def drawn(seed: int, requests: int, count: int, dim: int, strength: float) -> tuple[Tokens, jax.Array, Writes]:
    """New tokens, states and rings, with decays of up to exp(-strength)."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape)

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    new, kept = (requests, count, HEADS, dim), (SLOTS, RING, HEADS, dim)
    tokens = (unit(normal(*new)), unit(normal(*new)), normal(*new), -strength * random.random(new))
    ring = (unit(normal(*kept)), normal(*kept), np.exp(-strength * random.random(kept)))
    arrays = (*tokens, random.random(new[:3]), normal(SLOTS, HEADS, dim, dim), *ring)
    *of_tokens, states, keys, deltas, decay = (jnp.asarray(x, jnp.float32) for x in arrays)
    return Tokens(*of_tokens), states, Writes(keys, deltas, decay)


def exact(
    tokens: Tokens, states: np.ndarray, writes: Writes, slot: int, due: int, row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One request in float64: outputs, the state before its new tokens, and their deltas."""
    q, k, v, log_decay, beta = (np.asarray(x, np.float64)[row] for x in jax.tree.leaves(tokens))
    keys, deltas, decay = (np.asarray(x, np.float64)[slot] for x in jax.tree.leaves(writes))
    held = np.asarray(states, np.float64)
    for i in range(due):
        held = held * decay[i][..., None] + keys[i][..., None] * deltas[i][:, None]
    before, outputs, found = held, [], []
    for i in range(len(q)):
        held = held * np.exp(log_decay[i])[..., None]
        found.append(beta[i][:, None] * (v[i] - np.einsum("hk,hkv->hv", k[i], held)))
        held = held + k[i][..., None] * found[-1][:, None]
        outputs.append(np.einsum("hk,hkv->hv", q[i], held))
    return np.array(outputs), before, np.array(found)


STEP = jax.jit(lambda *held: advance_and_solve(*held, interpret=True), compiler_options=COMPILE_TO_RUN_ONCE)
# each request's slot (0: idle), how many tokens of its ring were accepted (-1: it begins)
RAGGED = st.lists(st.tuples(st.booleans(), st.integers(-1, RING)), min_size=4, max_size=4)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**20),
    asked=RAGGED,
    count=st.sampled_from([1, 4, 5]),
    dim=st.sampled_from([4, 64, 128]),
    strength=st.sampled_from([0.1, 5.0, 200.0]),
)
def test_the_kernel_equals_float64(
    seed: int, asked: list[tuple[bool, int]], count: int, dim: int, strength: float
) -> None:
    """Blocks of columns and one alone; rings longer than a step; idle requests beside others, all of them in slot 0;
    what is in a slot whose request begins does not matter, NaN included."""
    tokens, states, writes = drawn(seed, len(asked), count, dim, strength)
    slots = [0 if idle else int(slot) for (idle, _), slot in zip(asked, (3, 1, 6, 4), strict=True)]
    due = [max(0 if idle else number, 0) for idle, number in asked]
    begins = [number < 0 for _, number in asked]
    strange = [slot for slot, new in zip(slots, begins, strict=True) if new and slot]
    states = states.at[jnp.array(strange, jnp.int32)].set(jnp.nan)
    standing = Standing(jnp.array(slots, jnp.int32), jnp.array(due, jnp.int32), jnp.array(begins))
    found = jax.tree.map(np.asarray, STEP(tokens, states, writes, standing))
    output, after, ring = found
    for row, slot in enumerate(slots):
        if not slot:
            assert np.isfinite(output[row]).all()
            continue
        held = np.zeros_like(states[slot]) if begins[row] else np.asarray(states[slot])
        expected, before, deltas = exact(tokens, held, writes, slot, due[row], row)
        assert error(output[row], expected) < 1e-5
        assert np.abs(after[slot] - before).max() <= 1e-5 * max(np.abs(before).max(), 1e-30)
        assert error(ring.deltas[slot, :count], deltas) < 1e-5
        assert np.array_equal(ring.keys[slot, :count], tokens.k[row])
        assert np.allclose(ring.decay[slot, :count], np.exp(tokens.log_decay[row]), rtol=1e-6)
        assert np.array_equal(ring.keys[slot, count:], writes.keys[slot, count:])
    for slot in {*range(SLOTS)} - {0, *slots}:
        assert np.array_equal(after[slot], states[slot])
        assert np.array_equal(ring.deltas[slot], writes.deltas[slot])


def test_states_in_bf16_are_advanced_in_float32() -> None:
    tokens, states, writes = drawn(3, 1, 2, 16, 1.0)
    standing = Standing(jnp.array([2], jnp.int32), jnp.array([3], jnp.int32), jnp.array([False]))
    rounded = states.astype(jnp.bfloat16)
    output, after, _ = STEP(tokens, rounded, writes, standing)
    expected, before, _ = exact(tokens, np.asarray(rounded[2], np.float32), writes, 2, 3, 0)
    assert after.dtype == jnp.bfloat16
    assert error(np.asarray(output[0]), expected) < 1e-5
    assert error(np.asarray(after[2], np.float32), before) < 2**-8


@pytest.mark.parametrize("dim", [24, 512, 2])
def test_widths_that_the_kernel_does_not_have_are_an_error(dim: int) -> None:
    tokens, states, writes = drawn(0, 1, 1, dim, 1.0)
    standing = Standing(jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    with pytest.raises(MeshwrightError, match=f"heads of {dim} channels: .* use another form"):
        advance_and_solve(tokens, states, writes, standing, interpret=True)


def test_a_decoder_gives_what_others_give() -> None:
    """In steps of ten tokens, all of them accepted, with heads over two ranks and requests over two groups."""
    model, _, tokens, expected = golden("kimi_linear")
    kernels = Kernels(state=Choice(INTERPRETED))
    session = session_of("kimi_linear", parse("attn_dp=2,attn_tp=2,ep=4", 4, model), kernels=kernels)
    assert error(teacher_forced(session, tokens, 10)[:, -SCORED:], expected) < 2e-5


def test_the_form_is_chosen_by_compiling_it() -> None:
    found: Any = state_form(golden("kimi_linear")[0], Layout())
    assert found.form == PLAIN
    assert [line.split(":")[0] for line in found.errors] == ["mosaic_gpu", "triton"]
    assert state_form(golden("llama")[0], Layout()) == ALL_PLAIN.state
