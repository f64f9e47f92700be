"""Sparse attention programs: reference against oracles, every cut and both designs against them, simulated devices."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import layouts.dsa.reference as reference
import layouts.dsa.sharded as sharded
import layouts.mla.reference as mla_reference
from layouts.cache import Batch
from layouts.collectives import psum
from layouts.dsa import Indexer
from layouts.dsa.form import IndexForm
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.mla import MLA
from layouts.rotary import Rotation
from layouts.serving.errors import EngineRuleError
from tests.layouts.dsa_problem import (
    EPS,
    LENGTHS,
    SCALE,
    SHORT,
    TOPK,
    Problem,
    floats,
    indexer_of,
    laid_out,
    relative,
    shared_of,
)

GOLDENS = np.load(pathlib.Path(__file__).parents[1] / "goldens" / "dsa.npz")
SHAPES = {
    "low-rank query": MLA(32, 16, 12, 16, 8, 4, 6, False, Indexer(32, 12, 8, 8, TOPK, False)),
    "full-rank query": MLA(32, 16, 0, 16, 8, 4, 6, False, Indexer(32, 0, 8, 8, TOPK, False)),
    "low-rank query, index of the hidden state": MLA(32, 16, 12, 16, 8, 4, 6, False, Indexer(32, 0, 8, 8, TOPK, False)),
    # relu leaves half of the scores of one head at zero: most choices are decided between equals
    "ties": MLA(32, 16, 12, 16, 8, 4, 6, False, Indexer(32, 12, 1, 8, TOPK, False)),
}


@pytest.mark.parametrize(
    ("name", "verify", "turned", "interleaved"),
    [
        ("low-rank query", 3, True, True),
        ("low-rank query", 1, True, False),
        ("full-rank query", 3, True, False),
        ("ties", 3, False, False),
    ],
)
def test_reference_equals_the_oracle(name, verify, turned, interleaved):
    problem = Problem(SHAPES[name], verify, turned, interleaved)
    caches = []
    for values in problem.cached:
        cache = np.zeros((4, problem.context, values[0].shape[1]), np.float32)
        for line, tokens, start in zip(cache, values, problem.starts, strict=True):
            line[:start] = tokens[:start]
        caches.append(jnp.asarray(cache))
    chosen, outputs, keys = None, [], caches.pop()
    more = {"scale": SCALE, "eps": EPS, "index_form": problem.form, "rotation": problem.new_rotation}
    for shape, weights, rows, cache in zip(problem.shapes, problem.weights, problem.rows, caches, strict=True):
        step = jax.jit(functools.partial(reference.decode, shape, **more))
        output, _, keys, chosen = step(weights, rows, cache, keys, jnp.asarray(problem.starts), chosen)
        outputs.append(output)
    problem.check(outputs, chosen)


def test_scores_equal_the_oracle():
    problem = Problem(SHAPES["low-rank query"], 3, True)
    ends = np.cumsum([len(h) for h in problem.hidden[0]])
    for i, expected in zip(np.flatnonzero(problem.live), problem.scores, strict=True):
        length = len(problem.hidden[0][i])
        own = jax.tree.map(lambda x, first=ends[i] - length, last=ends[i]: x[first:last], problem.indexed)
        seen = jnp.asarray(np.tri(length, dtype=bool))[None]
        found = np.asarray(reference.scores(own, own.key[None], seen))[0]
        for row, want in zip(found[-3:], expected, strict=True):
            assert relative(row[: len(want)], want) < 1e-5
            assert (row[len(want) :] == -np.inf).all()


def program(shapes, layout, mesh, design, form):
    """The step of both layers over a mesh. That it traces shows that a group's choice is the same on its ranks."""
    axes = axes_of(layout)

    def body(weights, hidden, pools, keys, batch, rotation):
        chosen, outputs, after = None, [], []
        for shape, w, rows, pool in zip(shapes, weights, hidden, pools, strict=True):
            output, pool, keys, chosen = sharded.decode(
                shape, w, rows, pool, keys, batch, axes, chosen, backend=layout.dcp_backend, design=design,
                scale=SCALE, eps=EPS, index_form=form, rotation=rotation,
            )  # fmt: skip
            outputs.append(psum(output, axes["attn_tp"]))
            after.append(pool)
        return tuple(outputs), tuple(after), keys, chosen

    weights = tuple(sharded.weight_specs(shape, axes, layout.dcp_backend) for shape in shapes)
    rows, pool = axes.spec("attn_dp"), axes.spec(("attn_dp", "attn_tp"))
    keys = sharded.index_pool_spec(axes, design)
    in_specs, out_specs = (weights, rows, pool, keys, rows, rows), (rows, pool, keys, rows)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


def layout_of(degrees, backend):
    attn_dp, attn_tp, dcp = degrees
    return Layout(attn_dp=attn_dp, attn_tp=attn_tp, dcp=dcp, ep=attn_dp * attn_tp, dcp_backend=backend)


@pytest.mark.parametrize(
    ("name", "degrees", "backend", "design", "verify", "page_interleave", "lengths"),
    [
        ("low-rank query", (1, 1, 1), "a2a", "replicated", 3, False, LENGTHS),
        ("low-rank query", (2, 8, 8), "a2a", "replicated", 3, True, LENGTHS),
        (
            "low-rank query",
            (2, 8, 8),
            "ag_rs",
            "sharded",
            3,
            False,
            LENGTHS,
        ),  # ranks hold fewer tokens than a row chooses
        ("ties", (1, 16, 4), "ag_rs", "replicated", 3, False, LENGTHS),  # four DCP groups in an attention group
        ("ties", (1, 16, 4), "a2a", "sharded", 1, True, LENGTHS),
        ("ties", (2, 8, 2), "ag_rs", "sharded", 3, False, LENGTHS),
        ("full-rank query", (4, 4, 2), "fi_a2a", "sharded", 3, True, LENGTHS),
        ("low-rank query, index of the hidden state", (4, 4, 1), "a2a", "sharded", 1, False, LENGTHS),
        ("low-rank query", (1, 2, 2), "ag_rs", "sharded", 3, False, SHORT),
        ("low-rank query", (1, 2, 2), "a2a", "sharded", 3, False, (5, None, 3)),  # fewer tokens than a row may choose
    ],
)
def test_in_every_cut(name, degrees, backend, design, verify, page_interleave, lengths):
    problem = Problem(SHAPES[name], verify, turned=name != "ties", lengths=lengths)
    layout = layout_of(degrees, backend)
    before, after, batch = laid_out(problem, layout, design, page_interleave)
    pools = [jnp.asarray(pool.reshape(-1, pool.shape[-1])) for pool in before]
    step = program(problem.shapes, layout, mesh_of(layout), design, problem.form)
    outputs, *found, chosen = step(
        problem.weights, problem.rows, tuple(pools[:2]), pools[2], batch, problem.new_rotation
    )
    problem.check(outputs, chosen)
    assert (np.asarray(chosen)[~problem.live] == -1).all()
    # each token is written once, where it belongs, and nothing to row 0 of any rank
    for pool, want in zip((*found[0], found[1]), after, strict=True):
        np.testing.assert_allclose(np.asarray(pool).reshape(want.shape), want, rtol=0, atol=1e-5)


@given(
    st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, -np.inf]), min_size=12, max_size=12),
    st.permutations(range(12)),
    st.integers(1, 12),
)
def test_best_takes_the_lowest_of_equals_in_whatever_order_they_come(scores, positions, count):
    ranked = sorted((-score, position) for score, position in zip(scores, positions, strict=True) if score > -np.inf)
    expected = [position for _, position in ranked[:count]]
    score, chosen = jax.jit(reference.best, static_argnums=2)(
        jnp.asarray(scores, jnp.float32)[None, None], jnp.asarray(positions, jnp.int32)[None, None], count
    )
    assert chosen[0, 0].tolist() == expected + [-1] * (count - len(expected))
    assert [-s for s in score[0, 0].tolist()][: len(expected)] == [s for s, _ in ranked[:count]]


def golden_weights(name):
    """A golden layer's weights by our names."""
    prefix, ours = f"{name}/weight.", {"o_proj": "o_proj", "q_b_proj": "q_b_proj"}
    ours |= {"q_a_layernorm": "q_a_norm", "kv_a_layernorm": "kv_a_norm", "indexer.wk": "index_k_proj"}
    ours |= {"indexer.wq_b": "index_q_b_proj", "indexer.weights_proj": "index_weights_proj"}
    w = {key[len(prefix) :].removesuffix(".weight"): GOLDENS[key] for key in GOLDENS.files if key.startswith(prefix)}
    out = {ours[key]: value for key, value in w.items() if key in ours}
    out["fused_qkv_a_proj"] = np.concatenate([w["q_a_proj"], w["kv_a_proj_with_mqa"]])
    out["w_kc"], out["w_vc"] = mla_reference.absorb(GOLDEN, jnp.asarray(w["kv_b_proj"]))
    if "indexer.k_norm" in w:
        out["index_k_norm"] = np.concatenate([w["indexer.k_norm"], w["indexer.k_norm.bias"]])
    return floats(out)


GOLDEN = MLA(24, 4, 12, 16, 8, 4, 6, False, Indexer(24, 12, 8, 8, 6, False))


def golden_rotation(first, count):
    """Rows of both requests: base 100, two pairs."""
    angles = np.tile(np.arange(first, first + count)[:, None] * 100.0 ** (-np.arange(2) / 2), (2, 1))
    return Rotation(jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32), True)


def test_reference_equals_transformers():
    """A prompt of 21 tokens, then 3 in one step, through a full layer and one that shares its choice."""
    x, tokens = GOLDENS["x"], 24
    caches = [jnp.zeros((2, tokens, 20)), jnp.zeros((2, tokens, 20)), jnp.zeros((2, tokens, 8))]
    choices = []
    for first, count in ((0, 21), (21, 3)):
        chosen, more = None, {"scale": 12**-0.5, "eps": 1e-6, "index_form": IndexForm(True)}
        more["rotation"] = golden_rotation(first, count)
        for i, (name, shape) in enumerate((("full", GOLDEN), ("shared", shared_of(GOLDEN)))):
            step = jax.jit(functools.partial(reference.decode, shape, **more))
            rows = jnp.asarray(x[i, :, first : first + count].reshape(-1, 24))
            lengths = jnp.full(2, first, jnp.int32)
            output, caches[i], caches[2], chosen = step(
                golden_weights(name), rows, caches[i], caches[2], lengths, chosen
            )
            expected = GOLDENS[f"{name}/rows"][:, first : first + count]
            assert relative(output, expected.reshape(output.shape)) < 1e-5
        choices.append(np.sort(np.asarray(chosen), axis=-1))
    np.testing.assert_array_equal(np.concatenate(choices, axis=1)[:, 6:], GOLDENS["full/chosen"])


@pytest.mark.parametrize(("interleaved", "name"), [(True, "full"), (False, "half_split")])
def test_index_equals_both_families_of_transformers(interleaved, name):
    @jax.jit
    def choice(weights, hidden, rotation):
        low, _ = mla_reference.low_rank(GOLDEN, weights, hidden, 1e-6)
        indexed = reference.project_index(indexer_of(GOLDEN), weights, hidden, low, rotation, IndexForm(interleaved))
        seen = jnp.broadcast_to(jnp.tril(jnp.ones((24, 24), bool)), (2, 24, 24))
        score = reference.scores(indexed, indexed.key.reshape(2, 24, 8), seen)
        return reference.best(score, jnp.broadcast_to(jnp.arange(24)[None, None], score.shape), 6)[1]

    hidden = jnp.asarray(GOLDENS["x"][0].reshape(-1, 24))
    chosen = np.sort(choice(golden_weights("full"), hidden, golden_rotation(0, 24)), axis=-1)
    np.testing.assert_array_equal(chosen[:, 6:], GOLDENS[f"{name}/chosen"])


@pytest.mark.smoke
@pytest.mark.parametrize("design", sharded.DESIGNS)
def test_full_size_traces_without_devices(design):
    """GLM-5 under attention DP2, TP8 and DCP8: 16 requests a group of up to 128k tokens, four verified."""
    full = MLA(6144, 64, 2048, 512, 192, 64, 256, False, Indexer(6144, 2048, 32, 128, 2048, False))
    shapes, layout = (full, shared_of(full)), layout_of((2, 8, 8), "a2a")

    def array(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    weights = tuple({k: array(jnp.bfloat16, *size) for k, size in sharded.weight_shapes(s).items()} for s in shapes)
    batch = jax.eval_shape(lambda: Batch(jnp.zeros((32, 131_072), jnp.int32), jnp.zeros(32, jnp.int32)))
    rows, pool = array(jnp.bfloat16, 128, 6144), array(jnp.float8_e4m3fn, 16 * 300_000, 576)
    keys = array(jnp.bfloat16, 16 * 300_000, 128)
    rotation = jax.eval_shape(lambda: Rotation(jnp.zeros((128, 32)), jnp.zeros((128, 32)), True))
    step = program(shapes, layout, abstract_mesh_of(layout), design, IndexForm(True))
    outputs, pools, after, chosen = jax.eval_shape(step, weights, (rows,) * 2, (pool,) * 2, keys, batch, rotation)
    assert [(x.shape, x.dtype) for x in outputs] == [(rows.shape, rows.dtype)] * 2
    assert [(x.shape, x.dtype) for x in (*pools, after)] == [(x.shape, x.dtype) for x in (pool, pool, keys)]
    assert (chosen.shape, chosen.dtype) == ((32, 4, 2048), jnp.int32)


def test_what_cannot_be_chosen_says_so():
    dense = dataclasses.replace(GOLDEN, indexer=None)
    with pytest.raises(EngineRuleError, match="no indexer"):
        sharded.weight_shapes(dense)
    with pytest.raises(EngineRuleError, match="that of the full layer"):
        reference.handed_on(None)
    with pytest.raises(EngineRuleError, match="'paged' is unknown: choose one of replicated, sharded"):
        sharded.index_pool_spec(axes_of(layout_of((1, 1, 1), "a2a")), "paged")
