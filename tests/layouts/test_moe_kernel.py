"""The grouped GEMM's kernels as JAX operations, on random choices, against NumPy loops in float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.dense.activation import SwiGLU
from layouts.kernels import INTERPRETED, PLAIN, first_form
from layouts.moe.grouped import NOWHERE, TRIED, compile_form, grouped
from layouts.moe.kernel import Ends, Factor, Operand, Order, Tile, factor_of, order_by_expert, product, tile_of
from layouts.moe.kernel.product import taken
from layouts.moe.reference import Experts
from layouts.shapes import ShapeError
from layouts.stored import quantise
from layouts.tensor import FORMATS

once = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)
HELD, TOPK, ROWS, INPUTS, COLUMNS = 4, 3, 20, 32, 48
TILE = Tile(rows=16, columns=16, inputs=16, warps=4, stages=2, programs=2)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, INPUTS))
WEIGHTS = RANDOM.normal(size=(HELD, 2, COLUMNS, INPUTS))
# one expert more often than a tile has rows, so that it has several; numbers from a few make others empty
CHOICES = st.lists(st.sampled_from([NOWHERE, 0, 0, 1, 3]), min_size=ROWS * TOPK, max_size=ROWS * TOPK)


@once
def _order(local):
    return order_by_expert(local, HELD, interpret=True)


def _ordered(local):
    """The order of choices, as NumPy arrays."""
    arrays: Any = map(np.asarray, _order(local))
    return Order(*arrays)


def _sorted(local):
    """Choices of experts that are here, in the order of these."""
    return [c for expert in range(HELD) for c in np.flatnonzero(local == expert)]


@settings(max_examples=20)
@given(CHOICES)
def test_choices_stand_in_the_order_of_their_experts(choices):
    local = np.array(choices, np.int32)
    expected, order = _sorted(local), _ordered(local)
    assert order.starts.tolist() == [sum(0 <= x < expert for x in choices) for expert in range(HELD + 1)]
    assert order.choice[: len(expected)].tolist() == expected
    assert order.row[np.array(expected, int)].tolist() == list(range(len(expected)))
    assert not order.row[local < 0].any()


@pytest.mark.parametrize("choices", [1, 5, 5000])
def test_any_number_of_choices_is_ordered(choices):
    """5000 are more than a program looks at at once."""
    local = np.random.default_rng(1).integers(-1, HELD, choices).astype(np.int32)
    expected, order = _sorted(local), _ordered(local)
    assert order.choice[: len(expected)].tolist() == expected
    assert not order.row[local < 0].any()


def test_very_many_choices_are_sorted(monkeypatch):
    """More than all programs may look at; without a kernel there is nothing to interpret."""
    monkeypatch.setattr("layouts.moe.kernel.order._WHOLE", 1000)
    local = np.random.default_rng(1).integers(-1, HELD, 500).astype(np.int32)
    expected, order = _sorted(local), once(functools.partial(order_by_expert, held=HELD))(local)
    assert order.starts.tolist() == [(local[local >= 0] < expert).sum() for expert in range(HELD + 1)]
    assert order.choice.tolist()[: len(expected)] == expected
    assert np.asarray(order.row)[expected].tolist() == list(range(len(expected)))
    assert not np.asarray(order.row)[local < 0].any()


@functools.partial(once, static_argnums=4)
def _product(x, weights, bias, local, back):
    run = functools.partial(
        product, order=order_by_expert(local, HELD, interpret=True), room=ROWS * TOPK, tile=TILE, multiprocessors=3,
        interpret=True,
    )  # fmt: skip
    ends, result = Ends(source=TOPK, back=back), Operand(jnp.float32)
    return run(x, Factor(weights, bias=bias), ends=ends, finish=SwiGLU(), result=result)


@pytest.mark.parametrize("back", [False, True])
@settings(max_examples=10)
@given(choices=CHOICES)
def test_products_are_those_of_a_loop(back, choices):
    """What lies in rows that no expert here is chosen for, NaN too, reaches nothing."""
    local = np.array(choices, np.int32)
    seen = (local.reshape(ROWS, TOPK) != NOWHERE).any(axis=1)
    bias = np.arange(HELD * 2 * COLUMNS).reshape(HELD, 2, COLUMNS) / 100
    inputs = (np.where(seen[:, None], X, np.nan), WEIGHTS, bias)
    found = np.asarray(_product(*(jnp.asarray(x, jnp.float32) for x in inputs), local, back))
    for row, choice in enumerate(_sorted(local)):
        gate, up = WEIGHTS[local[choice]] @ X[choice // TOPK] + bias[local[choice]]
        place = choice if back else row
        np.testing.assert_allclose(found[place], gate / (1 + np.exp(-gate)) * up, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("programs", [1, 2, 7])
def test_every_tile_is_taken_once_and_none_that_is_not(programs):
    """The interpreter drops what is written beyond an array, and a GPU writes it."""
    for tiles in (0, 1, 2, 6, 7, 8, 50):
        counts = [int(taken(jnp.int32(tiles), jnp.int32(first), programs)) for first in range(programs)]
        passed = [first + i * programs for first, count in enumerate(counts) for i in range(count)]
        assert sorted(passed) == list(range(tiles))


def test_rows_beside_fp8_keep_their_bits_in_float16():
    """Every bfloat16 from 2^-10 to 2^20, of eight bits; what is smaller moves by at most 2^-21."""
    stored = quantise(jnp.ones((1, 128, 128), jnp.float32), FORMATS["fp8"])
    operand = factor_of(stored, None, jnp.bfloat16).operand(jnp.bfloat16)
    assert operand.dtype == jnp.float16

    def moved(exponents: range) -> np.ndarray:
        x = (np.arange(128, 256)[:, None] * 2.0 ** (np.array(exponents) - 7)).astype(np.float32)
        kept = np.asarray(operand.of(jnp.asarray(x, jnp.bfloat16)), np.float32) * operand.smaller
        return np.abs(kept - x).max()

    assert moved(range(-10, 20)) == 0
    assert 0 < moved(range(-30, -10)) <= 2.0**-21


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
def test_blocks_of_fp8_are_read_as_they_are_stored(dtype, bound):
    """Scales differ between blocks of 128 x 128; the plain form multiplies the same values, spread out. Rows in
    bfloat16 are rounded twice, between the products and behind them, to 1/256 of a value."""
    random = np.random.default_rng(2)

    def stored(*shape) -> Any:
        blocks = random.uniform(0.5, 2, size=(*shape[:-2], shape[-2] // 128, shape[-1] // 128))
        wide = random.normal(size=shape) * blocks.repeat(128, -2).repeat(128, -1)
        return quantise(jnp.asarray(wide, jnp.float32), FORMATS["fp8"])

    experts = Experts(stored(2, 2, 128, 256), stored(2, 256, 128))
    assert factor_of(experts.w13, None, jnp.float32).values.dtype == jnp.float8_e4m3fn
    x = jnp.asarray(random.normal(size=(6, 256)), dtype).astype(jnp.float32)
    local = jnp.array([[0, 1], [NOWHERE, 0], [1, NOWHERE], [0, 1], [NOWHERE, NOWHERE], [1, 0]], jnp.int32)
    run = functools.partial(grouped, activation=SwiGLU(), with_bias=jnp.bool_(True))
    both = (
        once(functools.partial(run, form=INTERPRETED))(x.astype(dtype), local, experts),
        once(functools.partial(run, form=PLAIN))(x, local, experts),
    )
    here = np.asarray(local) != NOWHERE
    found, expected = (np.asarray(out.astype(jnp.float32))[here] for out in both)
    assert both[0].dtype == dtype
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()


def test_a_tile_is_cut_down_to_what_divides_and_no_further():
    assert Tile(16, 128, 64, 4, 2, 2).fitted(96, 48) == Tile(16, 32, 16, 4, 2, 2)
    with pytest.raises(ShapeError, match="100 x 64"):
        TILE.fitted(100, 64)


def test_more_rows_an_expert_never_get_a_smaller_tile():
    for kind in ("gated", "single", "gated_fp8", "single_fp8"):
        rows = [tile_of(kind, mean).rows for mean in (0.1, 1, 4, 16, 64, 256, 1024, 1e6)]
        assert rows == sorted(rows)


def test_a_weight_of_two_to_four_gib_of_bytes_is_refused():
    """The backend's offsets have 32 bits there, with a sign."""
    values = jax.ShapeDtypeStruct((40, 1, 8192, 8192), jnp.float8_e4m3fn)
    scale = jax.ShapeDtypeStruct((40, 1, 64, 64), jnp.float32)
    arrays: Any = (jax.ShapeDtypeStruct((n,), jnp.int32) for n in (32, 16, 41))
    run = functools.partial(
        product,
        room=16,
        ends=Ends(),
        finish=lambda sums: sums,
        result=Operand(jnp.bfloat16),
        tile=TILE,
        multiprocessors=2,
        interpret=True,
    )
    with pytest.raises(ShapeError, match="2684354560 weights"):
        jax.eval_shape(
            lambda x, v, s, o: run(x, Factor(v, s, None, (128, 128)), order=o),
            jax.ShapeDtypeStruct((16, 8192), jnp.bfloat16), values, scale, Order(*arrays),
        )  # fmt: skip


def test_a_cpu_takes_the_plain_form_and_says_why():
    x, local = jax.ShapeDtypeStruct((4, 32), jnp.float32), jax.ShapeDtypeStruct((4, 2), jnp.int32)
    shapes: Any = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 2, 16, 32), (2, 32, 16)))
    experts = Experts(*shapes)
    choice = first_form("grouped GEMM", TRIED, lambda form: compile_form(form, x, local, experts, SwiGLU()))
    assert choice.form == TRIED[-1]
    assert choice.errors[0].startswith("triton: cpu")
