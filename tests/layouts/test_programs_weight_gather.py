"""Row shards of weights brought together: bit for bit the whole weights, one layer ahead of their use."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.audit import count
from layouts.audit.traced import step_shapes
from layouts.decoder import staging
from layouts.decoder.program import Program
from layouts.decoder.weights import is_shape
from layouts.generation import Capacity
from layouts.layout import Layout, ShardedLayers
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.shapes import ShapeError
from layouts.text import parse
from layouts.weight_gather.sharded import gather
from tests.layouts.decoding import golden

CAPACITY = Capacity(1, 48, page=4)
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
        return tuple(w[None] for w in gather(shards, axes))

    program, found = over(layout, body, weights, specs, (every,) * 3)
    assert str(jax.make_jaxpr(program)(*weights)).count("= all_gather") == 3 * (layout.weight_shard > 1)
    for copies, expected in zip(found, weights, strict=True):
        assert copies.dtype == expected.dtype
        for copy in copies:
            np.testing.assert_array_equal(np.asarray(copy), expected)


def test_a_gather_is_issued_before_the_layer_that_hides_it_and_needs_nothing_of_it():
    """In a decoder, layer 2's weights are under way when layer 1 begins, and not before layer 0 is done."""
    model, forms, _, _ = golden("kimi-k3")
    layout = parse("attn_dp=16,ep=16,weight_shard=8", 16, model)
    (stage,) = Program.of(model, forms, layout, CAPACITY.room(1), None).stages
    held = stage.module(
        jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.bfloat16), stage.weight_shapes(), is_leaf=is_shape)
    )
    step = step_shapes(layout, 1, 1, CAPACITY.context)
    traced = jax.make_jaxpr(stage.body("verify"))(held[1], step.tokens, stage.described_caches(jnp.bfloat16), step)
    (mapped,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map"]
    begun, issued, behind = [], 0, {}  # behind: how many layers a value waits for
    for equation in next(inners(mapped)).eqns:
        waits = max((behind.get(v, 0) for v in equation.invars if not hasattr(v, "val")), default=0)
        if is_gather(equation) and "weight_gather" in str(equation.source_info.name_stack):
            assert waits == len(begun)  # those before the layer that hides it: no fewer, or all would come at first
            issued += 1
        elif equation.params.get("name") == "_layer":
            begun.append(issued)
            waits = len(begun)
        behind |= dict.fromkeys(equation.outvars, waits)
    kept = [sum(axis != staging.WHOLE for axis in along) for along in nnx.merge(*held).along]
    assert kept[0] == 0 and min(kept[1:]) > 0  # layer 0 is whole
    assert begun == [sum(kept[: i + 2]) for i in range(5)]  # the last of five has none behind it


def is_gather(equation) -> bool:
    return equation.primitive.name.startswith("all_gather")  # its typed forms have other names


def inners(equation):
    for value in equation.params.values():
        found = getattr(value, "jaxpr", value)
        if hasattr(found, "eqns"):
            yield found


def test_a_gather_moves_the_bytes_of_its_shards_and_copies_none():
    """Kimi K3's LatentMoE part over 8 cards, in fp8: 183,500,800 bytes (facts of the model)."""
    axes = axes_of(Layout(attn_dp=16, ep=16, weight_shard=8, weight_shard_layers=SHARDED))
    shapes = ((3584, 7168), (7168, 3584), (12288, 7168), (7168, 6144))
    shards: Any = [jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn) for shape in shapes]
    specs = (axes.spec("weight_shard", None),) * 4
    program = jax.shard_map(
        lambda *s: gather(s, axes), mesh=abstract_mesh_of(LAYOUTS[0]), in_specs=specs, out_specs=PartitionSpec()
    )
    traced = jax.make_jaxpr(program)(*shards)
    sent = Counter({e.payload: e.count for e in count(traced).collectives})
    assert sent == Counter(rows * columns for rows, columns in shapes)
    assert sum(sent.elements()) == 183_500_800
    (mapped,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map"]
    inside = {e.primitive.name for e in next(inners(mapped)).eqns}
    assert {name for name in inside if not name.startswith("all_gather")} == {"bitcast_convert_type"}


def test_a_single_number_is_not_sharded():
    with pytest.raises(ShapeError, match="single number"):
        gather([jnp.float32(1)], axes_of(LAYOUTS[0]))
