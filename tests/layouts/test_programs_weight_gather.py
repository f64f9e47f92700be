"""Row shards of several weights in one exchange: bit for bit the whole weights, one layer ahead of their use."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.layout import Layout, ShardedLayers
from layouts.mesh import axes_of, mesh_of
from layouts.shapes import ShapeError
from layouts.weight_gather.sharded import Packing, through_layers, whole

SHARDED = ShardedLayers(0, 4)
LAYOUTS = [
    Layout(attn_dp=16, ep=16, weight_shard=8, weight_shard_layers=SHARDED),
    Layout(attn_dp=2, attn_tp=4, ep=8, dispatch="all_to_all", weight_shard=2, weight_shard_layers=SHARDED),
    Layout(attn_dp=4, ep=4),
]


def random_weights(layers: int):
    """Weights of three dtypes, of 1, 2 and 4 bytes, as the builds mix them."""
    random = np.random.default_rng(0)
    return (
        random.normal(size=(layers, 16, 6)).astype(ml_dtypes.float8_e4m3fn),
        random.normal(size=(layers, 8, 2, 3)).astype(ml_dtypes.bfloat16),
        random.normal(size=(layers, 32)).astype(np.float32),
    )


def over(layout, body, arrays, specs, out):
    program = jax.shard_map(body, mesh=mesh_of(layout), in_specs=specs, out_specs=out)
    return program, jax.jit(program, compiler_options=COMPILE_TO_RUN_ONCE)(*arrays)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_arrives_is_the_whole_weight(layout):
    axes, weights = axes_of(layout), tuple(w[0] for w in random_weights(1))
    specs = (axes.spec("weight_shard"),) * 3
    every = PartitionSpec(axes.names)

    def body(*shards):
        return tuple(w[None] for w in whole(shards, axes))

    program, found = over(layout, body, weights, specs, (every,) * 3)
    assert str(jax.make_jaxpr(program)(*weights)).count("= all_gather") == (layout.weight_shard > 1)
    for copies, expected in zip(found, weights, strict=True):
        assert copies.dtype == expected.dtype
        for copy in copies:
            np.testing.assert_array_equal(np.asarray(copy), expected)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_layers_run_in_order_each_with_its_own_weights(layers):
    """x -> tanh(x W + b), weights gathered, biases whole; as many gathers as layers, and the same numbers."""
    layout = LAYOUTS[0]
    axes, random = axes_of(layout), np.random.default_rng(1)
    first, second = (random.normal(size=(layers, 8, 8), scale=0.4).astype(np.float32) for _ in range(2))
    bias, x = (random.normal(size=shape).astype(np.float32) for shape in ((layers, 8), (16, 3, 8)))

    def layer(state, weights, bias):
        return jnp.tanh(state @ weights[0].T @ weights[1].T + bias[None, :])

    def body(x, first, second, bias):
        return through_layers(layer, x[0], (first, second), bias, axes)[None]

    shard = axes.spec(None, "weight_shard")
    specs = (axes.spec("attn_dp"), shard, shard, axes.spec())
    program, found = over(layout, body, (x, first, second, bias), specs, axes.spec("attn_dp"))
    expected = x
    for w1, w2, b in zip(first, second, bias, strict=True):
        expected = np.tanh(expected @ w1.T @ w2.T + b)
    assert np.abs(np.asarray(found) - expected).max() < 2e-5
    assert gathers(jax.make_jaxpr(program)(x, first, second, bias).jaxpr) == layers


def test_a_gather_does_not_wait_for_the_layer_before_it():
    """In the loop's body the exchange reads the following layer's shards alone: nothing that the layer computes."""
    layout = LAYOUTS[0]
    axes = axes_of(layout)
    weights = (np.zeros((3, 8, 8), np.float32),)

    def body(x, w):
        return through_layers(lambda state, whole, _: state @ whole[0], x[0], (w,), None, axes)[None]

    specs = (axes.spec("attn_dp"), axes.spec(None, "weight_shard"))
    program = jax.shard_map(body, mesh=mesh_of(layout), in_specs=specs, out_specs=axes.spec("attn_dp"))
    (loop,) = [
        e
        for e in flat(jax.make_jaxpr(program)(np.zeros((16, 3, 8), np.float32), *weights).jaxpr)
        if e.primitive.name == "scan"
    ]
    inner = loop.params["jaxpr"].jaxpr
    # a loop's body takes constants (of which there are none here), what is carried, and a layer's shards
    assert len(inner.invars) == len(inner.outvars) + 1
    reached = set(inner.invars[:-1])
    for equation in inner.eqns:
        if any(v in reached for v in equation.invars if not hasattr(v, "val")):
            assert not is_gather(equation)
            reached |= set(equation.outvars)
    assert any(is_gather(e) for e in inner.eqns)


def is_gather(equation) -> bool:
    return equation.primitive.name.startswith("all_gather")  # its typed forms have other names


def flat(jaxpr):
    """Every equation, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inners(equation):
            yield from flat(inner)


def inners(equation):
    for value in equation.params.values():
        found = getattr(value, "jaxpr", value)
        if hasattr(found, "eqns"):
            yield found


def gathers(jaxpr, times=1):
    """All-gathers that run, a loop's as often as it turns."""
    count = 0
    for equation in jaxpr.eqns:
        count += times * (is_gather(equation))
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        count += sum(gathers(inner, times * turns) for inner in inners(equation))
    return count


def test_a_message_has_the_bytes_of_its_shards():
    """Kimi K3's LatentMoE part over 8 cards, in fp8: 183,500,800 / 8 bytes a message (facts of the model)."""
    shapes = ((3584, 7168), (7168, 3584), (12288, 7168), (7168, 6144))
    shards: Any = [jax.ShapeDtypeStruct((rows // 8, columns), jnp.float8_e4m3fn) for rows, columns in shapes]
    assert sum(Packing.of(shards).sizes) == 183_500_800 // 8
    with pytest.raises(ShapeError, match="single number"):
        Packing.of([jnp.float32(1)])
