"""Routers and experts against transformers' answers and NumPy loops; every way to cut them against one device."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.dense.activation import ClampedSwiGLU, SiTU, SwiGLU
from layouts.dense.reference import GatedMLP, gated_mlp
from layouts.dense.sharded import dense
from layouts.dense.sharded import weight_specs as dense_specs
from layouts.kernels import INTERPRETED, PLAIN
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.moe.exchange import Exchange, Form, form_of
from layouts.moe.grouped import grouped, to_local
from layouts.moe.reference import Experts, Latent, Mixture, MoEWeights, moe, route
from layouts.moe.router import Router
from layouts.moe.sharded import moe as moe_sharded
from layouts.moe.sharded import weight_specs
from layouts.moe.wire import Wire
from layouts.rules import LayoutError
from layouts.shapes import ShapeError
from tests.layouts.moe_oracle import EXPERTS, MIXTURES, oracle, shape_of, weights_of

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
GOLDEN = np.load(GOLDENS / "moe.npz")
FAMILIES = {
    "deepseek_v3": Mixture(Router(4, "sigmoid", scaling=2.5, groups=4, group_topk=2), SwiGLU()),
    "kimi_linear": Mixture(Router(4, "sigmoid", scaling=2.446), SwiGLU()),
    "qwen3_moe": Mixture(Router(4, "softmax"), SwiGLU()),
    "gpt_oss": Mixture(Router(4, "softmax_of_chosen"), ClampedSwiGLU(7.0)),
}


once = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)


def error(found, expected):
    """Largest difference over the largest expected value."""
    return np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()


def golden(family):
    """Weights, input, weight of each expert, and output of a transformers block."""
    stored = {k.split(".")[1]: jnp.asarray(GOLDEN[k]) for k in GOLDEN if k.startswith(f"{family}.")}
    shared = GatedMLP(stored["shared_gate_up"], stored["shared_down"]) if "shared_down" in stored else None
    experts = Experts(stored["w13"], stored["w2"], stored.get("w13_bias"), stored.get("w2_bias"))
    bias, correction = stored.get("router_bias"), stored.get("correction_bias")
    weights = MoEWeights(stored["router"], experts, bias, correction, None, shared)
    return weights, stored["x"], stored["weight_of_expert"], stored["out"]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same(family):
    weights, x, of_expert, out = golden(family)
    routing, found = once(lambda x, w: (route(x, w, FAMILIES[family].router), moe(x, w, FAMILIES[family])))(x, weights)
    dense_weights = jnp.zeros_like(of_expert).at[jnp.arange(len(x))[:, None], routing.experts].set(routing.weights)
    assert error(dense_weights, of_expert) < 2e-6
    assert error(found, out) < 2e-6


def test_torchtitan_gives_the_same_on_a_latent_width():
    stored = {key: jnp.asarray(value) for key, value in np.load(GOLDENS / "latent_moe.npz").items()}
    weights = MoEWeights(
        stored["router"],
        Experts(stored["w13"], stored["w2"]),
        correction_bias=stored["correction_bias"],
        latent=Latent(stored["latent_down"], stored["latent_up"], stored["latent_norm"]),
        shared=GatedMLP(stored["shared_gate_up"], stored["shared_down"]),
    )
    mixture = Mixture(Router(4, "sigmoid"), SiTU(4.0, 25.0), eps=1e-5)
    assert error(once(moe, static_argnums=2)(stored["x"], weights, mixture), np.asarray(stored["out"])) < 2e-6


@pytest.mark.parametrize("kind", MIXTURES)
def test_loops_give_the_same(kind):
    weights, x = weights_of(kind), jax.random.normal(jax.random.key(1), (9, 16), jnp.float32)
    assert error(once(moe, static_argnums=2)(x, weights, MIXTURES[kind]), oracle(kind, weights, x)) < 2e-6


def test_groups_bar_the_best_expert():
    """Expert 0 scores highest of all, in a group whose two best sum to less than each other group's."""
    scores = np.array([[0.9, 0.1, 0.6, 0.6, 0.55, 0.56]])
    router = Router(2, "sigmoid", renormalize=False, groups=3, group_topk=2)
    routing = router(jnp.asarray(np.log(scores / (1 - scores)), jnp.float32))
    assert routing.experts.tolist() == [[2, 3]]
    np.testing.assert_allclose(routing.weights, [[0.6, 0.6]], rtol=1e-6)


def test_ties_go_to_the_lowest_expert_and_a_bias_only_steers():
    assert Router(2, "softmax")(jnp.zeros((1, 4), jnp.float32)).experts.tolist() == [[0, 1]]
    routing = Router(1, "sigmoid", renormalize=False)(jnp.zeros((1, 4), jnp.float32), jnp.array([0.0, 0.0, 9.0, 0.0]))
    assert routing.experts.tolist() == [[2]]
    assert float(routing.weights[0, 0]) == pytest.approx(0.5)


def test_situ_is_bounded_and_clamps_hold():
    """Large arguments: 4 x 1 x 25 = 100; gate 0.5 x sigmoid(1.702 / 2) x 1.5."""
    big = jnp.full((1, 1), 1e4, jnp.bfloat16)
    assert float(SiTU(4.0, 25.0)(big, big)[0, 0]) == pytest.approx(100, rel=1e-2)
    assert SiTU(4.0)(big, big).dtype == jnp.bfloat16
    clamped = ClampedSwiGLU(0.5)(jnp.full((1,), 9.0), jnp.full((1,), 9.0))
    assert float(clamped[0]) == pytest.approx(0.5 / (1 + np.exp(-0.851)) * 1.5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Router(0, "sigmoid"), "topk = 0"),
        (lambda: Router(1, "sigmoid", groups=2, group_topk=3), "group_topk = 3"),
        (lambda: Router(1, "tanh"), "tanh"),  # pyright: ignore[reportArgumentType]
        (lambda: Router(1, "sigmoid", groups=3)(jnp.zeros((1, 4))), "4 experts"),
        (lambda: Router(3, "sigmoid", groups=2)(jnp.zeros((1, 4))), "topk = 3"),
        (lambda: SiTU(0.0), "beta"),
        (lambda: ClampedSwiGLU(-1.0), "limit"),
        (lambda: Wire(fp8=True).encode(jnp.zeros((1, 100))), "100 values"),
    ],
)
def test_what_cannot_be_is_an_error(make, says):
    with pytest.raises(ShapeError, match=says):
        make()


@once
def _held_here(x, choices, real, first, held):
    return grouped(x, to_local(choices, real, first, 2), held, SwiGLU(), jnp.bool_(True))


@settings(max_examples=20)
@given(
    choices=st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3, unique=True), min_size=6, max_size=6),
    first=st.sampled_from([0, 2, 6]),
    real=st.integers(0, 6),
)
def test_grouped_rows_are_those_of_a_loop(choices, first, real):
    """Two experts of eight are here; what padding left in a row (NaN) reaches nothing."""
    random, rows = np.random.default_rng(0), len(choices)
    w13, w2 = random.normal(size=(8, 2, 3, 4)), random.normal(size=(8, 4, 3))
    x = random.normal(size=(rows, 4))
    x[real:] = np.nan
    held = Experts(*(jnp.asarray(w[first : first + 2], jnp.float32) for w in (w13, w2)))
    found = _held_here(jnp.asarray(x, jnp.float32), np.array(choices, np.int32), np.arange(rows) < real, first, held)
    for row, chosen in enumerate(choices):
        for k, expert in enumerate(chosen):
            gate, up = w13[expert] @ x[row]
            if row < real and first <= expert < first + 2:
                expected = w2[expert] @ (gate / (1 + np.exp(-gate)) * up)
                np.testing.assert_allclose(found[row, k], expected, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------- over a mesh

ROWS = 8  # room of an attention group: a multiple of every attn_tp
KINDS = tuple(MIXTURES)
exchanging = functools.partial(Layout, dispatch="all_to_all")
packing = functools.partial(Layout, padding="sum_len")
# layout, kind of mixture, form
CUTS = [
    (exchanging(attn_dp=16, ep=16), KINDS[0], "all_to_all"),
    (exchanging(attn_dp=2, attn_tp=8, ep=16), KINDS[1], "all_to_all"),
    (exchanging(attn_dp=2, attn_tp=2, attn_cp=2, ep=8), KINDS[2], "all_to_all"),
    (exchanging(attn_tp=4, ep=4, replicas=2), KINDS[3], "all_to_all"),
    (Layout(attn_tp=8, ep=8), KINDS[1], "one_group"),
    (Layout(attn_tp=8, ep=2, expert_tp=4), KINDS[3], "one_group"),
    (Layout(attn_tp=8, expert_tp=8), KINDS[0], "one_group"),
    (Layout(attn_dp=4, attn_tp=4, ep=8, expert_tp=2), KINDS[3], "max_len"),
    (Layout(attn_dp=4, attn_tp=2, ep=8), KINDS[1], "max_len"),
    (Layout(attn_dp=8, ep=4, moe_dp=2), KINDS[0], "max_len"),
    (Layout(attn_dp=2, attn_tp=8, ep=2, expert_tp=2, moe_dp=4), KINDS[1], "max_len"),  # a group over two copies
    (Layout(attn_tp=8, ep=4, moe_dp=2), KINDS[2], "max_len"),
    (Layout(attn_cp=4, attn_tp=2, ep=4, expert_tp=2), KINDS[0], "max_len"),
    (packing(attn_dp=4, attn_tp=2, ep=4, expert_tp=2), KINDS[3], "sum_len"),
    (packing(attn_dp=4, attn_tp=4, ep=4, moe_dp=4), KINDS[1], "sum_len"),
    (packing(attn_dp=2, attn_tp=8, ep=4, moe_dp=4), KINDS[0], "sum_len"),
    (Layout(attn_dp=8, ep=8), KINDS[1], "exact"),
    (Layout(attn_dp=8, ep=2, expert_tp=2, moe_dp=2), KINDS[3], "exact"),
    (Layout(), KINDS[1], "one_group"),
]


def counts_of(layout):
    """Rows of each group: none in the first, all that fit in the last, where there are several."""
    groups = layout.attn_dp * layout.attn_cp
    return np.array([5]) if groups == 1 else np.array([0, *np.random.default_rng(3).integers(1, 7, groups - 2), ROWS])


def run(layout, exchange, weights, mixture, rows, counts, stream=0.0, kernel=PLAIN):
    """(replicas, groups, attn_tp, rows, hidden): what each rank ends with. rows: (groups, rows, hidden), of which the
    share `stream` is there before the attention's parts are added; as much of them is in the result again. `kernel`:
    form of the grouped GEMMs."""
    axes, tp = exchange.axes, layout.attn_tp
    group, parts = ("attn_dp", "attn_cp"), np.random.default_rng(5).dirichlet(np.ones(tp))
    per_rank = [rows * part * (1 - stream) for part in parts]
    x = np.broadcast_to(np.stack(per_rank, axis=1), (layout.replicas, len(rows), tp, *rows.shape[1:]))
    before = np.broadcast_to(rows * stream, (layout.replicas, *rows.shape))
    spec, whole = axes.spec("replicas", group, "attn_tp"), axes.spec("replicas", group)

    def body(x, before, counts, weights):
        kept = exchange.keep(x[0, 0, 0], before[0, 0])
        out = moe_sharded(exchange.spread(kept, counts), exchange.real(counts), weights, mixture, exchange, kernel)
        back = exchange.leave(out, counts, kept * stream)
        assert not set(axes["attn_tp"]) & set(jax.typeof(back).manual_axis_type.varying)  # typed as equal in a group
        return back[None, None, None]

    program = jax.shard_map(
        body,
        mesh=mesh_of(layout),
        in_specs=(spec, whole, axes.spec(), weight_specs(shape_of(weights, mixture), axes, exchange.form)),
        out_specs=spec,
        check_vma=kernel == PLAIN,  # Pallas' interpreter leaves out where values vary
    )
    inputs = (jnp.asarray(x, jnp.float32), jnp.asarray(before, jnp.float32), jnp.asarray(counts, jnp.int32))
    return np.asarray(once(program)(*inputs, weights))


def exchange_of(layout, weights, form, counts):
    whole = weights.latent is not None
    return Exchange(axes_of(layout), form, ROWS, packed=int(counts.sum()), whole=whole)


def problem(layout, hidden=16):
    """Rows of each group with NaN where there is no token, and the counts."""
    counts = counts_of(layout)
    rows = np.random.default_rng(4).normal(size=(len(counts), ROWS, hidden))
    rows[np.arange(ROWS)[None, :] >= counts[:, None]] = np.nan
    return rows, counts


def held(found, counts):
    """(ranks, tokens, hidden): the rows that hold a token, on each replica and attention rank."""
    real = np.arange(ROWS)[None, :] < counts[:, None]
    return found.transpose(0, 2, 1, 3, 4)[:, :, real].reshape(-1, counts.sum(), found.shape[-1])


@pytest.mark.parametrize(("layout", "kind", "form"), CUTS)
def test_every_cut_gives_what_one_device_gives(layout, kind, form):
    rows, counts = problem(layout)
    weights, mixture = weights_of(kind), MIXTURES[kind]
    exchange = exchange_of(layout, weights, Form(form), counts)
    assert form == "exact" or form_of(layout) == form
    found = held(run(layout, exchange, weights, mixture, rows, counts), counts)
    expected = oracle(kind, weights, held(rows[None, :, None], counts)[0])
    for rank in found:
        assert error(rank, expected) < 2e-5


@pytest.mark.parametrize(
    ("layout", "form"),
    [(exchanging(attn_dp=2, ep=2), "all_to_all"), (Layout(attn_dp=2, attn_tp=2, ep=2, expert_tp=2), "max_len")],
)
def test_kernels_give_what_one_device_gives(layout, form):
    """As JAX operations, on widths of whole tiles; a bias is added by one of the ranks that share an expert."""
    rows, counts = problem(layout, hidden=32)
    kind = KINDS[3]
    weights, mixture = weights_of(kind, hidden=32, width=32), MIXTURES[kind]
    exchange = exchange_of(layout, weights, Form(form), counts)
    found = held(run(layout, exchange, weights, mixture, rows, counts, kernel=INTERPRETED), counts)
    expected = oracle(kind, weights, held(rows[None, :, None], counts)[0])
    for rank in found:
        assert error(rank, expected) < 2e-5


@pytest.mark.parametrize("layout", [CUTS[3][0], CUTS[5][0], CUTS[7][0], CUTS[9][0]])
def test_padding_costs_no_expert(layout):
    """Whatever stands in a row without a token, its routed output is zero: not even a bias is added."""
    counts, kind = counts_of(layout), KINDS[3]
    rows = np.random.default_rng(4).normal(size=(len(counts), ROWS, 16))
    found = run(layout, Exchange.of(layout, ROWS), weights_of(kind), MIXTURES[kind], rows, counts)
    tokens = np.arange(ROWS)[None, :] < counts[:, None]
    by_row = np.abs(found.transpose(0, 2, 1, 3, 4)).max(axis=-1)
    assert (by_row[:, :, tokens] > 0).all()
    assert (by_row[:, :, ~tokens] == 0).all()


@pytest.mark.parametrize("form", ["all_to_all", "one_group", "max_len", "sum_len"])
def test_the_stream_is_added_once_on_the_way_in_and_once_on_the_way_out(form):
    """Part of what the experts see is there before the attention's parts are summed; its share comes back on top."""
    groups = 1 if form == "one_group" else 2
    layout = Layout(
        attn_dp=groups, attn_tp=4, ep=4 * groups, dispatch="all_to_all" if form == "all_to_all" else "all_gather"
    )
    rows, counts = problem(layout)
    weights = weights_of(KINDS[1])
    exchange = exchange_of(layout, weights, Form(form), counts)
    found = held(run(layout, exchange, weights, MIXTURES[KINDS[1]], rows, counts, stream=0.75), counts)
    tokens = held(rows[None, :, None], counts)[0]
    assert error(found[-1], oracle(KINDS[1], weights, tokens) + 0.75 * tokens) < 2e-5


@pytest.mark.parametrize(
    ("form", "layout"), [("all_to_all", exchanging(attn_dp=8, ep=8)), ("exact", Layout(attn_dp=8, ep=8))]
)
def test_the_fp8_wire_keeps_its_bound(form, layout):
    """On the way to the experts a value moves by at most 1/16 of itself; one choice that is a sum of all its inputs
    shows it, and that something was lost shows that the wire was used."""
    hidden = 128
    rows, counts = problem(layout, hidden)
    mixture = Mixture(Router(1, "softmax"), _first_is_the_gate)
    weights = MoEWeights(
        jnp.zeros((EXPERTS, hidden)).at[0].set(1.0),
        Experts(jnp.eye(hidden)[None].repeat(2, 0)[None].repeat(EXPERTS, 0), jnp.eye(hidden)[None].repeat(EXPERTS, 0)),
    )
    exchange = Exchange(axes_of(layout), Form(form), ROWS, packed=int(counts.sum()), wire=Wire(fp8=True))
    found = held(run(layout, exchange, weights, mixture, rows, counts), counts)[0]
    sent = held(rows[None, :, None], counts)[0]
    bound = np.maximum(np.abs(sent) / 16, np.abs(sent).max(axis=1, keepdims=True) / 448 / 1024)
    assert (np.abs(found - sent) <= bound * (1 + 1e-5)).all()
    assert np.abs(found - sent).max() > 1e-3


def _first_is_the_gate(gate, up):
    return gate


def test_the_dense_mlp_over_an_attention_group():
    layout = Layout(attn_dp=2, attn_tp=8, ep=16)
    axes, random = axes_of(layout), np.random.default_rng(2)
    gate_up, down, x = random.normal(size=(2, 16, 8)), random.normal(size=(8, 16)), random.normal(size=(2, 3, 8))
    weights = GatedMLP(jnp.asarray(gate_up, jnp.float32), jnp.asarray(down, jnp.float32))

    def body(x, weights):
        return dense(x[0], weights, SwiGLU(), axes)[None]

    specs = (axes.spec("attn_dp"), dense_specs(axes))
    program = jax.shard_map(body, mesh=mesh_of(layout), in_specs=specs, out_specs=axes.spec("attn_dp"))
    found = once(program)(jnp.asarray(x, jnp.float32), weights)
    for group, rows in enumerate(x):
        for row, token in enumerate(rows):
            gate, up = gate_up @ token
            assert error(found[group, row], down @ (gate / (1 + np.exp(-gate)) * up)) < 2e-6
    assert gated_mlp(jnp.ones((1, 8), jnp.bfloat16), weights, SwiGLU()).dtype == jnp.bfloat16


def test_full_size_traces_without_devices():
    """A layer of 896 experts, 16 of them a token, on a latent width of 3584 (Kimi K3): rows travel out and back."""
    layout = exchanging(attn_dp=2, attn_tp=8, ep=16)
    exchange, mixture = Exchange.of(layout, 960), Mixture(Router(16, "sigmoid"), SiTU(4.0, 25.0))
    of: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    weights = MoEWeights(
        router=of((896, 7168)),
        experts=Experts(of((896, 2, 3072, 3584)), of((896, 3584, 3072))),
        correction_bias=of((896,)),
        latent=Latent(of((3584, 7168)), of((7168, 3584)), of((3584,))),
        shared=GatedMLP(of((2, 6144, 7168)), of((7168, 6144))),
    )

    def body(x, stream, counts, weights):
        stream = exchange.keep(x, stream)
        out = moe_sharded(exchange.spread(stream, counts), exchange.real(counts), weights, mixture, exchange)
        return exchange.leave(out, counts, stream)

    axes, whole = exchange.axes, exchange.axes.spec("attn_dp")
    specs = (axes.spec("tp"), whole, axes.spec(), weight_specs(shape_of(weights, mixture), axes, exchange.form))
    program = jax.shard_map(body, mesh=abstract_mesh_of(layout), in_specs=specs, out_specs=axes.spec("tp"))
    x, stream = (jax.ShapeDtypeStruct((n * 960, 7168), jnp.bfloat16) for n in (16, 2))
    traced = jax.jit(program).trace(x, stream, jax.ShapeDtypeStruct((2,), jnp.int32), weights)
    assert traced.out_info.shape == x.shape
    text = str(traced.jaxpr)
    assert text.count("all_to_all[") == 1  # sums back
    # rows out, their choices, rows back to attention
    assert text.count("all_gather[") + text.count("all_gather_invariant[") == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rows": 6}, "multiple of attn_tp = 4"),
        ({"form": Form.SUM_LEN}, "give packed"),
        ({"form": Form.EXACT, "packed": 8}, "attn_tp = 4"),
        ({"wire": Wire(fp8=True)}, "fp8 wire"),
    ],
)
def test_an_exchange_that_cannot_be_is_an_error(fields, says):
    with pytest.raises(LayoutError, match=says):
        Exchange(**{"axes": axes_of(Layout(attn_dp=2, attn_tp=4, ep=8)), "form": Form.MAX_LEN, "rows": 8, **fields})
