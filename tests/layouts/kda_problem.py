"""Steps of linear attention drawn at random, and what they come to in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from layouts.kda.chunked import Writes
from layouts.kda.inputs import Result
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from tests.layouts.decoding import error

CLOSE = 1e-5

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


def standing(slots: list[int], due: list[int], begins: list[bool]) -> Standing:
    """Where requests stand; slot 0 is that of idle ones."""
    return Standing(jnp.array(slots, jnp.int32), jnp.array(due, jnp.int32), jnp.array(begins))


def spoilt(states: jax.Array, writes: Writes, slots: list[int], begins: list[bool]) -> tuple[jax.Array, Writes]:
    """What a slot whose request begins was left with does not matter: NaN."""
    left = jnp.array([slot for slot, new in zip(slots, begins, strict=True) if new and slot], jnp.int32)
    return jax.tree.map(lambda x: x.at[left].set(jnp.nan), (states, writes))


def assert_equal_to_float64(found: Result, tokens: Tokens, states: jax.Array, writes: Writes, stand: Standing) -> None:
    """Outputs, states and what new tokens leave in the ring; and that nothing else was touched: not the ring behind
    them, nor slots of nobody."""
    output, after, ring = jax.tree.map(np.asarray, found)
    before_all, old = np.asarray(states), jax.tree.map(np.asarray, writes)
    count, slots = tokens.k.shape[1], stand.slots.tolist()
    for row, (slot, due, begins) in enumerate(zip(slots, stand.pending.tolist(), stand.begins.tolist(), strict=True)):
        if not slot:
            assert np.isfinite(output[row]).all()
            continue
        held, due = (np.zeros_like(before_all[slot]), 0) if begins else (before_all[slot], due)
        expected, before, deltas = exact(tokens, held, writes, slot, due, row)
        assert error(output[row], expected) < CLOSE
        assert np.abs(after[slot] - before).max() <= CLOSE * max(np.abs(before).max(), 1e-30)
        assert error(ring.deltas[slot, :count], deltas) < CLOSE
        assert np.array_equal(ring.keys[slot, :count], tokens.k[row])
        assert np.allclose(ring.decay[slot, :count], np.exp(tokens.log_decay[row]), rtol=1e-6)
        for now, then in zip(jax.tree.leaves(ring), jax.tree.leaves(old), strict=True):
            assert np.array_equal(now[slot, count:], then[slot, count:], equal_nan=True)
    nobody = [*{*range(SLOTS)} - {0, *slots}]
    for now, then in zip((after, *jax.tree.leaves(ring)), (before_all, *jax.tree.leaves(old)), strict=True):
        assert np.array_equal(now[nobody], then[nobody])
