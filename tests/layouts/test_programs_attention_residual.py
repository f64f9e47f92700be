"""Attention residuals: the read against NumPy. Whole decoders with them are held to torchtitan in `test_decoder.py`."""

import functools
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
from layouts.layout import Layout
from layouts.mesh import axes_of, mesh_of
from layouts.residual.attention_residual import (
    Read,
    Stream,
    mixture,
    open_block,
    output_shapes,
    read_of,
    weight_shapes,
    weight_specs,
)
from layouts.residual.shape import ATTENTION, FFN, OUTPUT, AttentionResidual
from layouts.residual.sharded import own_rows
from layouts.residual.work import block_bytes, norm
from layouts.shapes import ShapeError
from layouts.symbols import ROWS

GOLDEN = pathlib.Path(__file__).parents[1] / "goldens" / "decoders" / "kimi-k3"
EPS = 1e-5
PUBLISHED = AttentionResidual(hidden=7168, block_size=12)  # of Kimi K3, 93 layers
jit = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)
MIX = jit(mixture, static_argnums=2)


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
    update = np.full((2, 12), 0.5)
    stream = stream._replace(sum=stream.sum + jnp.asarray(update, jnp.float32))
    np.testing.assert_array_equal(stream.sum, np.float32(update))
    np.testing.assert_allclose(
        MIX(stream, as_read(read), EPS), read_by_hand([*states, update], read), rtol=2e-5, atol=2e-5
    )


def test_a_scattered_read_holds_its_own_rows_and_exchanges_nothing() -> None:
    layout = Layout(attn_tp=8, ep=8)
    axes = axes_of(layout)
    states, read = random_stream(6, 16, 2)

    def body(stream: Stream, read: Read) -> jax.Array:
        own = jax.tree.map(lambda x: own_rows(x, axes["attn_tp"]), stream)
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
