"""Attention residuals: a whole tiny Kimi K3 against a model that nobody here wrote, and the read against NumPy."""

import functools
import json
import pathlib
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.dense.activation import SiTU
from layouts.dense.reference import GatedMLP, gated_mlp
from layouts.kda import reference as kda
from layouts.layout import Layout
from layouts.mesh import axes_of, mesh_of
from layouts.mla import reference as mla
from layouts.models import load_model
from layouts.moe.reference import Experts, Latent, Mixture, MoEWeights, moe
from layouts.moe.router import Router
from layouts.residual.attention_residual import (
    Read,
    Stream,
    add_mixed_norm,
    add_mixed_norm_replicated,
    add_mixed_norm_scattered,
    mixture,
    open_block,
    output_shapes,
    own_stream,
    read_of,
    weight_shapes,
    weight_specs,
)
from layouts.residual.shape import ATTENTION, FFN, OUTPUT, AttentionResidual
from layouts.residual.work import block_bytes, norm
from layouts.shapes import ShapeError
from layouts.symbols import ROWS

GOLDEN = pathlib.Path(__file__).parents[1] / "goldens" / "decoders" / "kimi-k3"
EPS = 1e-5
PUBLISHED = AttentionResidual(hidden=7168, block_size=12)  # of Kimi K3, 93 layers
jit = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)
MIX = jit(mixture, static_argnums=2)


class Golden:
    """Tensors of the golden by their checkpoint names, as our programs want them."""

    def __init__(self) -> None:
        self.text = json.loads((GOLDEN / "config.json").read_text())["text_config"]
        self.model = load_model(str(GOLDEN))
        raw = (GOLDEN / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        header.pop("__metadata__", None)
        self.tensors = {
            name.removeprefix("language_model."): np.frombuffer(
                raw[start + at["data_offsets"][0] : start + at["data_offsets"][1]], np.float32
            ).reshape(at["shape"])
            for name, at in header.items()
        }
        text = self.text
        self.residual = AttentionResidual(text["hidden_size"], text["attn_res_block_size"])
        self.activation = SiTU(text["activation_situ_beta"], text["activation_situ_linear_beta"])
        router = Router(text["num_experts_per_token"], "sigmoid", text["moe_renormalize"])
        self.mixture = Mixture(router, self.activation, text["rms_norm_eps"])
        self.kda = kda.Form(text["rms_norm_eps"], text["linear_attn_config"]["gate_lower_bound"])

    def __call__(self, name: str) -> jax.Array:
        return jnp.asarray(self.tensors[f"{name}.weight" if f"{name}.weight" in self.tensors else name])

    def read(self, name: str) -> Read:
        return Read(self(f"{name}_norm"), self(f"{name}_proj"))

    def delta(self, at: str) -> kda.Weights:
        shape = self.text["linear_attn_config"]["num_heads"], self.text["linear_attn_config"]["head_dim"], -1

        def by_head(*names: str) -> jax.Array:
            return jnp.stack([self(f"{at}.{name}").reshape(shape) for name in names])

        names = ("f_a_proj", "A_log", "b_proj", "o_norm")
        return kda.Weights(
            qkv_proj=by_head("q_proj", "k_proj", "v_proj"),
            conv1d=by_head("q_conv1d", "k_conv1d", "v_conv1d"),
            f_b_proj=by_head("f_b_proj")[0],
            g_proj=by_head("g_proj")[0],
            dt_bias=by_head("dt_bias")[0, :, :, 0],
            o_proj=self(f"{at}.o_proj").reshape(-1, *shape[:2]),
            **{name: self(f"{at}.{name}") for name in names},
        )

    def latent(self, shape: Any, at: str) -> dict[str, jax.Array]:
        w_kc, w_vc = mla.absorb(shape, self(f"{at}.kv_b_proj"))
        both = [self(f"{at}.q_a_proj"), self(f"{at}.kv_a_proj_with_mqa")]
        names = {"q_a_norm": "q_a_layernorm", "kv_a_norm": "kv_a_layernorm", "gate_proj": "g_proj"}
        names |= {name: name for name in ("q_b_proj", "o_proj")}
        plain = {ours: self(f"{at}.{theirs}") for ours, theirs in names.items()}
        return {"fused_qkv_a_proj": jnp.concatenate(both), "w_kc": w_kc, "w_vc": w_vc, **plain}

    def gated(self, at: str) -> GatedMLP:
        return GatedMLP(jnp.stack([self(f"{at}.gate_proj"), self(f"{at}.up_proj")]), self(f"{at}.down_proj"))

    def experts(self, at: str) -> MoEWeights:
        each = [[self(f"{at}.experts.{e}.w{i}") for e in range(self.text["num_experts"])] for i in (1, 2, 3)]
        down, up, norm = (self(f"{at}.routed_expert_{name}") for name in ("down_proj", "up_proj", "norm"))
        return MoEWeights(
            router=self(f"{at}.gate"),
            correction_bias=self(f"{at}.gate.e_score_correction_bias"),
            experts=Experts(jnp.stack([jnp.stack(each[0]), jnp.stack(each[2])], axis=1), jnp.stack(each[1])),
            latent=Latent(down, up, norm),
            shared=self.gated(f"{at}.shared_experts"),
        )

    def attention(self, layer: int, x: jax.Array) -> jax.Array:
        shape, at = self.model.layers[layer].attention, f"model.layers.{layer}.self_attn"
        if shape.label == "KDA":
            weights = self.delta(at)
            return kda.attention(x[None], kda.empty_state(weights, 1, x.dtype), weights, self.kda)[0][0]
        cache = jnp.zeros((1, len(x), shape.kv_values), x.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        scale = (self.text["qk_nope_head_dim"] + self.text["qk_rope_head_dim"]) ** -0.5
        weights, lengths = self.latent(shape, at), jnp.zeros(1, jnp.int32)
        return mla.decode(shape, weights, x, cache, lengths, scale=scale, eps=EPS)[0]  # pyright: ignore[reportArgumentType]

    def feed_forward(self, layer: int, x: jax.Array) -> jax.Array:
        if self.model.layers[layer].ffn.label == "dense":
            return gated_mlp(x, self.gated(f"model.layers.{layer}.mlp"), self.activation)
        return moe(x, self.experts(f"model.layers.{layer}.block_sparse_moe"), self.mixture)

    def logits(self, tokens: jax.Array) -> jax.Array:
        """Of one request, all positions."""
        stream = Stream(self("model.embed_tokens")[tokens])
        update = jnp.zeros_like(stream.sum)
        for layer in range(len(self.model.layers)):
            at = f"model.layers.{layer}"
            assert len(stream.blocks) == self.residual.blocks_before(layer)
            norm, read = self(f"{at}.input_layernorm"), self.read(f"{at}.{ATTENTION}")
            x, stream = add_mixed_norm(update, stream, read, norm, EPS)
            if self.residual.opens(layer):
                stream = open_block(stream)
            assert len(stream.blocks) == self.residual.blocks_after(layer)
            norm, read = self(f"{at}.post_attention_layernorm"), self.read(f"{at}.{FFN}")
            x, stream = add_mixed_norm(self.attention(layer, x), stream, read, norm, EPS)
            update = self.feed_forward(layer, x)
        x, _ = add_mixed_norm(update, stream, self.read(f"model.{OUTPUT}"), self("model.norm"), EPS)
        return x @ self("lm_head").T


@pytest.mark.smoke
def test_a_whole_kimi_k3_of_torchtitan() -> None:
    """Five layers, three blocks; 4e-6 of the largest logit is what its float32 differs from its own float64."""
    golden, arrays = Golden(), np.load(GOLDEN / "logits.npz")
    for tokens, expected in zip(arrays["tokens"], arrays["logits"], strict=True):
        found = np.asarray(jit(golden.logits)(jnp.asarray(tokens)), np.float64)[-len(expected) :]
        assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def random_stream(seed: int, rows: int, blocks: int, hidden: int = 12) -> tuple[list[np.ndarray], np.ndarray]:
    """The states that a read mixes, the sum last, of unlike sizes; and norm and proj of the read."""
    random = np.random.default_rng(seed)
    states = [random.normal(size=(rows, hidden)) * 10.0 ** random.integers(-2, 3) for _ in range(blocks + 1)]
    return states, random.normal(size=(2, hidden))


def read_by_hand(states: list[np.ndarray], read: np.ndarray) -> np.ndarray:
    """Row by row in float64, the scores from normed states."""
    out = np.empty_like(states[0])
    for row in range(len(out)):
        held = [state[row] for state in states]
        normed = [x / np.sqrt(np.mean(x * x) + EPS) * read[0] for x in held]
        chances = np.exp([x @ read[1] for x in normed])
        out[row] = sum(c * x for c, x in zip(chances / chances.sum(), held, strict=True))
    return out


def as_stream(states: list[np.ndarray], dtype: Any = jnp.float32) -> Stream:
    *blocks, total = (jnp.asarray(x, dtype) for x in states)
    return Stream(total, tuple(blocks))


def as_read(read: np.ndarray) -> Read:
    return Read(jnp.asarray(read[0], jnp.float32), jnp.asarray(read[1:], jnp.float32))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), blocks=st.integers(0, 5))
def test_a_read_by_hand(seed: int, blocks: int) -> None:
    """States whose sizes differ by up to four orders: a score does not depend on the size, the read does."""
    states, read = random_stream(seed, 3, blocks)
    found = np.asarray(MIX(as_stream(states), as_read(read), EPS), np.float64)
    np.testing.assert_allclose(found, read_by_hand(states, read), rtol=2e-5, atol=2e-5 * np.abs(states).max())


def test_a_stream_without_blocks_is_read_as_it_is() -> None:
    """At no cost, as engines do in layer 0."""
    states, read = random_stream(1, 3, 0)
    np.testing.assert_array_equal(mixture(as_stream(states), as_read(read), EPS), np.float32(states[0]))
    assert not jax.make_jaxpr(functools.partial(mixture, eps=EPS))(as_stream(states), as_read(read)).eqns


def test_empty_and_tiny_rows() -> None:
    """Rows of padding are zeros and stay so; where squares are as small as epsilon, it holds the scores down."""
    tiny, read = 3e-3 * np.eye(4), np.ones((2, 4))
    found = np.asarray(MIX(as_stream([np.zeros((4, 4)), tiny]), as_read(read), EPS), np.float64)
    # score of a tiny row: 3e-3 / sqrt(9e-6 / 4 + 1e-5); of zeros: 0
    chance = 1 / (1 + np.exp(-3e-3 / np.sqrt(9e-6 / 4 + 1e-5)))
    np.testing.assert_allclose(found, chance * tiny, rtol=1e-5)
    np.testing.assert_array_equal(MIX(as_stream([np.zeros((1, 4))] * 2), as_read(read), EPS), np.zeros((1, 4)))


def test_large_scores_do_not_overflow() -> None:
    """Scores of about 1000 and -1000: all of the read is the block that agrees with the weight."""
    agrees, read = np.full((1, 4), 2.0), np.stack([np.full(4, 25.0), np.full(4, 10.0)])
    found = MIX(as_stream([agrees, -3.0 * agrees]), as_read(read), EPS)
    np.testing.assert_array_equal(found, agrees)


def test_bf16_is_rounded_once() -> None:
    states, read = random_stream(2, 64, 3)
    stream = as_stream(states, jnp.bfloat16)
    found = MIX(stream, as_read(read), EPS)
    assert found.dtype == jnp.bfloat16
    held = [np.asarray(x, np.float64) for x in (*stream.blocks, stream.sum)]
    expected = read_by_hand(held, read)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-8 * 1.001, atol=1e-4)


def test_an_opening_layer() -> None:
    """The sum becomes a block, and the next update alone is the new sum."""
    states, read = random_stream(3, 2, 1)
    stream = open_block(as_stream(states))
    np.testing.assert_array_equal(stream.blocks[1], np.float32(states[1]))
    update, weight = np.full((2, 12), 0.5), np.linspace(0.5, 1.5, 12)
    normed, stream = jit(add_mixed_norm, static_argnums=4)(
        jnp.asarray(update, jnp.float32), stream, as_read(read), jnp.asarray(weight, jnp.float32), EPS
    )
    np.testing.assert_array_equal(stream.sum, np.float32(update))
    mixed = read_by_hand([*states, update], read)
    expected = mixed / np.sqrt(np.square(mixed).mean(axis=1, keepdims=True) + EPS) * weight
    np.testing.assert_allclose(normed, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", [Layout(attn_dp=2, attn_tp=8, ep=16), Layout(attn_tp=4, ep=4, replicas=4)])
def test_replicated_and_scattered(layout: Layout) -> None:
    """Two reads with an opening between them; partial sums of each rank; rows apart and together give the same."""
    ranks, rows, hidden, random = layout.attn_tp, 16, 12, np.random.default_rng(4)
    states, read = random_stream(5, rows, 1, hidden)
    partials, weight = random.normal(size=(2, ranks, rows, hidden)), random.normal(size=hidden)
    axes = axes_of(layout)
    group = axes["attn_tp"]

    def body(partials: jax.Array, stream: Stream, read: Read, weight: jax.Array) -> Any:
        def two(step: Any, stream: Stream) -> Any:
            first, stream = step(partials[0, 0], stream, read, weight, EPS, group)
            second, stream = step(partials[1, 0], open_block(stream), read, weight, EPS, group)
            return first, second, stream

        return two(add_mixed_norm_replicated, stream), two(add_mixed_norm_scattered, own_stream(stream, group))

    whole, by_rank, by_row = axes.spec(), axes.spec(None, "attn_tp"), axes.spec("attn_tp")
    program = jax.shard_map(
        body,
        mesh=mesh_of(layout),
        in_specs=(by_rank, whole, whole, whole),
        out_specs=(whole, by_row),
    )
    replicated, scattered = jit(program)(
        jnp.asarray(partials, jnp.float32), as_stream(states), as_read(read), jnp.asarray(weight, jnp.float32)
    )

    def normed(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPS) * weight

    updates = partials.sum(axis=1)
    opened = [states[0], states[1] + updates[0]]
    expected = (
        normed(read_by_hand(opened, read)),
        normed(read_by_hand([*opened, updates[1]], read)),
        (updates[1], tuple(opened)),
    )
    for found in (replicated, scattered):
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=5e-5, atol=5e-5)


def test_a_scattered_read_holds_its_own_rows_and_exchanges_nothing() -> None:
    layout = Layout(attn_tp=8, ep=8)
    axes = axes_of(layout)
    states, read = random_stream(6, 16, 2)

    def body(stream: Stream, read: Read) -> jax.Array:
        own = own_stream(stream, axes["attn_tp"])
        assert {x.shape for x in jax.tree.leaves(own)} == {(2, 12)}
        return mixture(own, read, EPS)

    program = jax.shard_map(
        body, mesh=mesh_of(layout), in_specs=(axes.spec(), axes.spec()), out_specs=axes.spec("attn_tp")
    )
    traced = str(jax.make_jaxpr(program)(as_stream(states), as_read(read)))
    assert " exp " in traced
    assert not any(name in traced for name in ("psum", "all_gather", "reduce_scatter", "all_to_all", "dot_general"))


def test_blocks_of_the_published_shape() -> None:
    """Layers 0, 12, ..., 84 open: eight blocks, of which the last layers and the output read all."""
    layers = range(93)
    assert [layer for layer in layers if PUBLISHED.opens(layer)] == [0, 12, 24, 36, 48, 60, 72, 84]
    assert [PUBLISHED.blocks_before(layer) for layer in (0, 1, 12, 13, 92, 93)] == [0, 1, 1, 2, 8, 8]
    assert [PUBLISHED.blocks_after(layer) for layer in (0, 11, 12, 92)] == [1, 1, 2, 8]
    # before: 12 layers each of 1..7 blocks and 8 of 8; after: 12 each of 1..7 and 9 of 8
    assert PUBLISHED.mean_blocks(layers) == (Fraction(12 * 28 + 64, 93), Fraction(12 * 28 + 72, 93))
    assert PUBLISHED.mean_blocks([0]) == (0, 1)


def test_weights_and_bytes() -> None:
    """Four vectors a layer and two before the last norm: 2.7 million parameters of the published model."""
    tensors = PUBLISHED.layer_tensors() * 93 + PUBLISHED.output_tensors()
    assert sum(tensor.parameters for tensor in tensors) == (93 * 4 + 2) * 7168
    assert all(tensor.rows is None and tensor.cut.evaluate({}) == 1 for tensor in tensors)
    shapes = weight_shapes(PUBLISHED)
    assert list(shapes) == [tensor.name for tensor in PUBLISHED.layer_tensors()]
    assert shapes["mlp_res_proj"] == (1, 7168)
    assert list(output_shapes(PUBLISHED)) == ["output_attn_res_norm", "output_attn_res_proj"]
    specs = weight_specs(shapes, axes_of(Layout(attn_tp=4, ep=4)))
    assert {name: len(spec) for name, spec in specs.items()} == {name: len(shape) for name, shape in shapes.items()}
    # a hundred rows: four passes and eight blocks of 7168 bf16 values, against four
    assert norm("x", ROWS, 7168, 8).bytes.evaluate({"rows": 100}) == 100 * 12 * 7168 * 2
    assert norm("x", ROWS, 7168).bytes.evaluate({"rows": 100}) == 100 * 4 * 7168 * 2
    assert norm("x", ROWS, 7168, Fraction(1, 2)).bytes.evaluate({"rows": 2}) == 9 * 7168 * 2
    assert block_bytes(ROWS, 7168, 8).evaluate({"rows": 100}) == 11_468_800


def test_a_read_takes_its_weights_by_name() -> None:
    names = [tensor.name for tensor in (*PUBLISHED.layer_tensors(), *PUBLISHED.output_tensors())]
    tree = {name: jnp.full((1,), i) for i, name in enumerate(names)}
    found = [[int(x[0]) for x in read_of(tree, name)] for name in (ATTENTION, FFN, OUTPUT)]
    assert found == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(("hidden", "block_size"), [(0, 12), (7168, 0), (7168, -1), (7168, True)])
def test_impossible_sizes(hidden: int, block_size: int) -> None:
    with pytest.raises(ShapeError, match=r"attention residual: .* must be an integer of at least 1"):
        AttentionResidual(hidden, block_size)


def test_a_mean_over_no_layer() -> None:
    with pytest.raises(ShapeError, match="no layer to average over"):
        PUBLISHED.mean_blocks([])
