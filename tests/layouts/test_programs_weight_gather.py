"""Row shards of weights brought together: bit for bit the whole weights, one layer ahead of their use."""

import functools
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.work import CollectiveKind
from layouts.audit import count
from layouts.audit.traced import step_shapes
from layouts.decoder import staging
from layouts.decoder.program import Program
from layouts.decoder.weights import is_shape
from layouts.generation import Capacity
from layouts.kernels import ALL_PLAIN, PLAIN, Choice
from layouts.layout import Layout, ShardedLayers
from layouts.linear import contract
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.shapes import ShapeError
from layouts.stored import quantise
from layouts.tensor import FORMATS
from layouts.text import parse
from layouts.weight_gather.blocks import Blocks
from layouts.weight_gather.sharded import COPIES, gather
from tests.layouts.decoding import SCORED, at_once, error, golden, session_of

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
        random.normal(size=(layers, 2, 8, 3)).astype(ml_dtypes.bfloat16),
        random.normal(size=(layers, 32)).astype(np.float32),
    )


def over(layout, body, arrays, specs, out):
    program = jax.shard_map(body, mesh=mesh_of(layout), in_specs=specs, out_specs=out, check_vma=False)
    return program, jax.jit(program, compiler_options=COMPILE_TO_RUN_ONCE)(*arrays)


@pytest.mark.parametrize("form", [PLAIN, COPIES])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_arrives_is_the_whole_weight(layout, form):
    axes, weights = axes_of(layout), tuple(w[0] for w in random_weights(1))
    specs = (axes.spec("weight_shard"), axes.spec(None, "weight_shard"), axes.spec("weight_shard"))
    every = PartitionSpec(axes.names)

    def body(*shards):
        return tuple(w.astype(w.dtype)[None] for w in gather(shards, (0, 1, 0), axes, form))

    program, found = over(layout, body, weights, specs, (every,) * 3)
    # XLA is asked to start copies early: a hint that it may not honour, and that a compiler for GPUs alone reads
    assert ("_xla_gpu_collective_stream" in jax.jit(program).lower(*weights).as_text()) == (
        form == COPIES and layout.weight_shard > 1
    )
    sent = Counter(e.kind for e in count(jax.make_jaxpr(program)(*weights)).collectives for _ in range(e.count))
    kind, each = (CollectiveKind.SEND, layout.weight_shard - 1) if form == COPIES else (CollectiveKind.ALL_GATHER, 1)
    assert sum(sent.values()) == sent[kind] == 3 * each * (layout.weight_shard > 1)
    for copies, expected in zip(found, weights, strict=True):
        assert copies.dtype == expected.dtype
        for copy in copies:
            np.testing.assert_array_equal(np.asarray(copy), expected)


@functools.cache
def decoder():
    """The operations of a decoder of five layers, the first of which is whole, and its weights as shapes."""
    model, forms, _, _ = golden("kimi-k3")
    layout = parse("attn_dp=16,ep=16,weight_shard=8", 16, model)
    (stage,) = Program.of(model, forms, layout, CAPACITY.room(1), None).stages
    held = stage.module(
        jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.bfloat16), stage.weight_shapes(), is_leaf=is_shape)
    )
    step = step_shapes(layout, 1, 1, CAPACITY.context)
    traced = jax.make_jaxpr(stage.body("verify"))(held[1], step.tokens, stage.described_caches(jnp.bfloat16), step)
    (mapped,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map"]
    return next(inners(mapped)).eqns, held


def test_a_gather_is_issued_before_the_layer_that_hides_it_and_needs_nothing_of_it():
    """In a decoder, layer 2's weights are under way when layer 1 begins, and not before layer 0 is done."""
    equations, held = decoder()
    begun, issued, behind = [], 0, {}  # behind: how many layers a value waits for
    for equation in equations:
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


def test_what_a_layer_leaves_goes_on_when_the_weights_of_the_next_are_there():
    """Or XLA would let the last of them arrive when that layer is about to use it."""
    equations, held = decoder()
    kept = [sum(axis != staging.WHOLE for axis in along) for along in nnx.merge(*held).along]
    of, issued, tied = {}, itertools.count(1), []  # of: the gathers, or the layer, that a value comes from
    for equation in equations:
        came = set().union(*(of.get(v, ()) for v in equation.invars if not hasattr(v, "val")))
        if equation.params.get("name") == "_layer":
            came = {"layer"}
        elif "weight_gather" in str(equation.source_info.name_stack):
            came = {next(issued)} if is_gather(equation) else came - {"layer"}
        elif equation.primitive.name == "optimization_barrier":
            tied.append(came)
            came = {"layer"}
        of |= dict.fromkeys(equation.outvars, came)
    numbers = itertools.count(1)
    assert tied == [{"layer"} | {next(numbers) for _ in range(count)} for count in kept[1:]]


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
        lambda *s: gather(s, (0,) * 4, axes),
        mesh=abstract_mesh_of(LAYOUTS[0]),
        in_specs=specs,
        out_specs=PartitionSpec(),
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
        gather([jnp.float32(1)], (0,), axes_of(LAYOUTS[0]))


EQUATIONS = (
    ("...i,oi->...o", (5, 3), (16, 3), 0),
    ("rh,gwh->rgw", (5, 3), (2, 16, 3), 1),
    ("rhi,hoi->rho", (5, 16, 3), (16, 2, 3), 0),  # the rows that are kept in parts are not summed, and x has them, too
    ("ri,io->ro", (5, 16), (16, 4), 0),
)


@pytest.mark.parametrize(("equation", "rows", "weight", "axis"), EQUATIONS)
def test_products_with_a_weight_in_blocks(equation, rows, weight, axis):
    """Equal to those with the whole weight, on every rank, wherever its blocks come from."""
    layout, random = LAYOUTS[0], np.random.default_rng(1)
    axes, x, whole = axes_of(layout), *(random.normal(size=size).astype(np.float32) for size in (rows, weight))

    def body(x, part):
        (blocks,) = gather([part], (axis,), axes, COPIES)
        assert blocks.shape == weight
        return contract(equation, x, blocks)[None]

    specs = (PartitionSpec(), axes.spec(*("weight_shard" if i == axis else None for i in range(len(weight)))))
    _, found = over(layout, body, (x, whole), specs, PartitionSpec(axes.names))
    for one in found:
        np.testing.assert_allclose(one, np.einsum(equation, x, whole), rtol=1e-5, atol=1e-5)


def test_a_product_reads_blocks_where_they_are():
    """None of them is joined to the others before it is multiplied: that would be a copy of the weight."""
    blocks = Blocks((jnp.ones((4, 3)), jnp.ones((4, 3))), 0, ("r1",))
    program = jax.shard_map(
        lambda x: contract("...i,oi->...o", x, blocks), mesh=mesh_of(Layout(attn_dp=2)),
        in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False,
    )  # fmt: skip
    (mapped,) = jax.make_jaxpr(program)(jnp.ones((5, 3))).jaxpr.eqns
    inside = next(inners(mapped)).eqns
    first = {name: i for i, name in reversed(list(enumerate(e.primitive.name for e in inside)))}
    assert [e.primitive.name for e in inside].count("dot_general") == 2
    assert first["concatenate"] > first["dot_general"]


@pytest.mark.parametrize("family", ["deepseek_v3", "kimi-k3"])
def test_a_decoder_whose_weights_are_copied_from_rank_to_rank(family):
    model, _, tokens, logits = golden(family)
    kernels = ALL_PLAIN._replace(weight_gather=Choice(COPIES))
    session = session_of(family, parse("attn_dp=4,ep=4,weight_shard=2", 4, model), kernels=kernels)
    assert error(at_once(session, tokens)[:, -SCORED:], logits) < 1e-4


@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_a_stored_weight_in_blocks(name):
    whole = quantise(jnp.asarray(np.random.default_rng(2).normal(size=(16, 64)), jnp.float32), FORMATS[name])
    axes = axes_of(LAYOUTS[0])

    def body(part):
        (blocks,) = gather([part], (0,), axes, COPIES)
        return replace(whole, payload=blocks).astype(jnp.float32)[None]

    _, found = over(LAYOUTS[0], body, (whole.payload,), (axes.spec("weight_shard", None),), PartitionSpec(axes.names))
    for one in found:
        np.testing.assert_array_equal(one, whole.astype(jnp.float32))
