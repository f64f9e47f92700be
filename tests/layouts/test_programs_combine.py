"""The DCP combine and the residual stream over simulated ranks, against plain NumPy float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.combine.partial import attend
from layouts.combine.sharded import combine
from layouts.layout import Layout
from layouts.mesh import axes_of, mesh_of
from layouts.residual.reference import rms_norm
from layouts.residual.sharded import add_norm_replicated, add_norm_scattered, all_rows, own_rows
from layouts.serving.errors import EngineRuleError

RANKS, ROWS, HEADS, KEY, WIDTH, SCALE = 8, 3, 16, 8, 4, 0.35
LAYOUT = Layout(attn_tp=RANKS, dcp=RANKS, ep=RANKS)
AXES = axes_of(LAYOUT)
ABSENT = {"nothing": -math.inf, "NaN": math.nan, "+inf": math.inf}


def full_attention(query, keys, values):
    """(rows, heads, width) in float64; zero without tokens."""
    if not len(keys):
        return np.zeros((*query.shape[:2], values.shape[-1]))
    scores = np.einsum("rhk,thk->rht", query, keys) * SCALE
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("rht,thw->rhw", weights / weights.sum(axis=-1, keepdims=True), values)


@functools.cache
def program(backend, base):
    """Every rank attends to the tokens it owns, spoils what an empty one says, and the group combines."""

    def body(query, keys, values, owners, absent):
        mine = jnp.broadcast_to((owners == jax.lax.axis_index(AXES["dcp"]))[None, None, :], (1, ROWS, len(owners)))
        part, lse = attend(query[None], keys[None], values[None], mine, SCALE)
        part, lse = part[0], lse[0] / math.log(base)
        lse = jnp.where(jnp.isneginf(lse), absent, lse)
        return combine(jnp.where(jnp.isfinite(lse)[..., None], part, jnp.nan), lse, AXES["dcp"], backend, base)

    whole = AXES.spec()
    out = AXES.spec(None, "dcp", None)
    return jax.jit(jax.shard_map(body, mesh=mesh_of(LAYOUT), in_specs=(whole,) * 5, out_specs=out))


def problem(seed, tokens, spread=1.0):
    random = np.random.default_rng(seed)
    query = random.normal(size=(ROWS, HEADS, KEY)) * spread
    return query, random.normal(size=(tokens, HEADS, KEY)), random.normal(size=(tokens, HEADS, WIDTH))


def combined(arrays, owners, backend, base=math.e, absent=-math.inf):
    query, keys, values = (jnp.asarray(x, jnp.float32) for x in arrays)
    return program(backend, base)(query, keys, values, jnp.asarray(owners, jnp.int32), jnp.float32(absent))


@given(
    seed=st.integers(0, 2**20),
    owners=st.lists(st.integers(-1, RANKS - 1), min_size=24, max_size=24),
    spread=st.sampled_from([0.1, 1.0, 20.0]),
    backend=st.sampled_from(["ag_rs", "a2a"]),
    base=st.sampled_from([math.e, 2.0]),
    absent=st.sampled_from([*ABSENT.values()]),
)
def test_any_split_gives_full_attention(seed, owners, spread, backend, base, absent):
    """Ranks hold any tokens in any number, -1 belongs to none; an empty rank may say anything."""
    query, keys, values = problem(seed, len(owners), spread)
    held = np.array(owners) >= 0
    expected = full_attention(query, keys[held], values[held])
    np.testing.assert_allclose(combined((query, keys, values), owners, backend, base, absent), expected, atol=1e-5)


@pytest.mark.parametrize("backend", ["ag_rs", "a2a", "fi_a2a"])
@pytest.mark.parametrize("absent", ABSENT)
def test_rows_without_tokens_are_zero(backend, absent):
    found = combined(problem(0, 24), np.full(24, -1), backend, absent=ABSENT[absent])
    assert not np.asarray(found).any()


@pytest.mark.parametrize("backend", ["ag_rs", "a2a"])
@pytest.mark.parametrize("owners", [np.arange(100_000) % RANKS, np.arange(100_000) // 30_000], ids=["turns", "runs"])
def test_a_long_context_in_float32(backend, owners):
    arrays = problem(1, 100_000, spread=3.0)
    np.testing.assert_allclose(combined(arrays, owners, backend), full_attention(*arrays), atol=1e-5)


def test_one_rank_alone():
    """Without DCP there is no exchange; an empty row is zero there too."""
    output = jnp.asarray([[[1.0, 2.0]], [[math.nan, math.nan]]], jnp.float32)
    lse = jnp.asarray([[3.0], [math.inf]], jnp.float32)
    np.testing.assert_array_equal(combine(output, lse, (), "a2a"), [[[1.0, 2.0]], [[0.0, 0.0]]])
    with pytest.raises(EngineRuleError, match=r"ring.*ag_rs, a2a"):
        combine(output, lse, (), "ring")


def test_sinks_take_weight_and_bring_nothing():
    """One token of score 0 beside a sink of 0: half its value. A sink alone: zero, and its logit as log-sum-exp."""
    query, keys = jnp.zeros((1, 2, 1, 4)), jnp.ones((1, 1, 1, 4))
    seen = jnp.asarray([[[True], [False]]])
    output, lse = attend(query, keys, keys * 3, seen, 1.0, jnp.zeros(1))
    np.testing.assert_allclose(output[0, :, 0], [[1.5] * 4, [0.0] * 4])
    np.testing.assert_allclose(lse[0, :, 0], [math.log(2), 0.0], rtol=1e-6)


def collectives(backend):
    """(primitive, bytes that go in on a rank) of a combine of bf16, 5 rows, 16 heads of 512."""

    def body(output, lse):
        return combine(output, lse, AXES["dcp"], backend)

    shapes = (jax.ShapeDtypeStruct((5, 16, 512), jnp.bfloat16), jax.ShapeDtypeStruct((5, 16), jnp.float32))
    specs = AXES.spec()
    mapped = jax.shard_map(body, mesh=mesh_of(LAYOUT), in_specs=(specs, specs), out_specs=AXES.spec(None, "dcp"))
    (shard,) = [e for e in jax.make_jaxpr(mapped)(*shapes).eqns if e.primitive.name == "shard_map"]
    names = ("all_gather", "all_to_all", "reduce_scatter")
    inside = [e for e in shard.params["jaxpr"].eqns if e.primitive.name in names]
    return [(e.primitive.name, e.invars[0].aval.size * e.invars[0].aval.dtype.itemsize) for e in inside]


def test_bytes_of_the_exchanges():
    """Serving rules: one packed exchange with two bf16 columns of LSE; or float32 LSE and float32 output."""
    assert collectives("a2a") == [("all_to_all", 5 * 16 * (512 + 2) * 2)]
    assert collectives("ag_rs") == [("all_gather", 5 * 16 * 4), ("reduce_scatter", 5 * 16 * 512 * 4)]


@pytest.mark.parametrize("backend", ["ag_rs", "a2a"])
def test_bf16_outputs_with_exact_log_sum_exps(backend):
    """The LSE travels bit by bit: 300 and 300.00195, which bf16 cannot tell apart, weigh 1 : 1.00195."""
    lse = np.full((RANKS, 1, HEADS), -np.inf, np.float32)
    lse[2], lse[5] = 300.0, 300.001953125
    output = np.full((RANKS, 1, HEADS, 1), np.nan, np.float32)
    output[2], output[5] = -1.0, 1.0

    def body(output, lse):
        return combine(output[0], lse[0], AXES["dcp"], backend)

    ranks = AXES.spec("dcp")
    step = jax.shard_map(body, mesh=mesh_of(LAYOUT), in_specs=(ranks, ranks), out_specs=AXES.spec(None, "dcp"))
    found = jax.jit(step)(jnp.asarray(output, jnp.bfloat16), jnp.asarray(lse))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), math.tanh(0.001953125 / 2), rtol=2**-7)


def test_residual_replicated_and_scattered():
    random = np.random.default_rng(3)
    partial, stream = random.normal(size=(RANKS, 16, 12)), random.normal(size=(16, 12))
    weight, eps = random.normal(size=12) + 1, 1e-5
    summed = stream + partial.sum(axis=0)
    normed = summed / np.sqrt((summed**2).mean(axis=1, keepdims=True) + eps) * weight

    def body(partial, stream, weight):
        axes = AXES["attn_tp"]
        replicated = add_norm_replicated(partial[0], stream, weight, eps, axes)
        scattered = add_norm_scattered(partial[0], own_rows(stream, axes), weight, eps, axes)
        assert scattered[1].shape == (16 // RANKS, 12)
        return replicated, scattered, all_rows(scattered[0], axes)

    whole, rows = AXES.spec(), AXES.spec("attn_tp")
    step = jax.shard_map(
        body, mesh=mesh_of(LAYOUT), in_specs=(rows, whole, whole), out_specs=((whole, whole), (rows, rows), whole)
    )
    replicated, scattered, gathered = jax.jit(step)(*(jnp.asarray(x, jnp.float32) for x in (partial, stream, weight)))
    for found, expected in zip(
        (*replicated, *scattered, gathered), (normed, summed, normed, summed, normed), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_norm_of_bf16_is_rounded_once():
    """Float32 until the end: within half a unit in the last place of what float64 makes of the same input."""
    random = np.random.default_rng(5)
    x, weight = (jnp.asarray(random.normal(size=size), jnp.bfloat16) for size in ((64, 96), (96,)))
    wide, scale = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    found = rms_norm(x, weight, 0.0)
    assert found.dtype == jnp.bfloat16
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True)) * scale
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-8 * 1.001)
