"""Decoders whose weights are fp8 and MXFP4, under several layouts, against the same with the values worked out before.

Blocks of fp8 are 8 x 8 here, so that tiny weights have several of them and cuts fall inside some.
"""

import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from layouts.audit import audit
from layouts.checkpoint import open_folder
from layouts.decoder.drawn import drawn
from layouts.decoder.loading import loaded_stage
from layouts.decoder.modules import values
from layouts.decoder.program import Program, StageProgram
from layouts.decoder.storage import Place
from layouts.generation import Capacity, Session
from layouts.gqa.sharded import repeated_kv
from layouts.layout import Layout
from layouts.load import Load
from layouts.mesh import axes_of
from layouts.models import Model, load_model
from layouts.models.load import load_forms
from layouts.rules import LayoutError
from layouts.shapes import ShapeError
from layouts.stored import is_stored
from layouts.tensor import FORMATS, Format
from layouts.text import parse
from tests.layouts.decoding import DECODERS, error, golden, teacher_forced

FP8 = Format("fp8", Fraction(1), Fraction(4, 64), "fp8", 8)
FORMATS_OF = {"attention": FP8, "dense": FP8, "shared": FP8, "head": FP8, "latent": FP8, "experts": FORMATS["mxfp4"]}
CAPACITY = Capacity(2, 48, page=4, verify=48)
SHARDED = "attn_dp=16,ep=16,dispatch=all_to_all,weight_shard=8,weight_shard_layers=0-2"
WIDTH = 20


def quantised(family: str) -> Model:
    model = golden(family)[0]
    return replace(model, precision=model.precision.with_formats(FORMATS_OF))


def program_of(family: str, layout: Layout, stored: bool) -> Program:
    room = CAPACITY.room(layout.dcp)
    return Program.of(quantised(family), golden(family)[1], layout, room, jax.devices(), stored=stored)


def plain(family: str, stage: StageProgram) -> Any:
    """The golden's weights on the stage's devices, float32."""
    return loaded_stage(stage, open_folder(DECODERS / family), jnp.float32)


def stored_tree(family: str, stage: StageProgram) -> Any:
    """The same, quantised."""
    make = jax.tree.map(lambda at, w: jax.jit(at.stored)(w) if at.scaled else w, stage.places, plain(family, stage))
    return stage.place(make, stage.stored_specs())


def worked_out(tree: Any) -> Any:
    return jax.tree.map(lambda w: w.astype(jnp.float32), tree, is_leaf=is_stored)


def logits(program: Program, trees: list[Any]) -> np.ndarray:
    session = Session(program, program.load(trees), CAPACITY, jnp.float32)
    return teacher_forced(session, golden("deepseek_v3")[2], WIDTH)


@functools.cache
def expected(family: str) -> np.ndarray:
    """Of plain arrays on one device, the values of the quantised weights worked out before."""
    stored, program = program_of(family, Layout(), True), program_of(family, Layout(), False)
    tree = worked_out(stored_tree(family, stored.stages[0]))
    return logits(program, [program.stages[0].place(tree, program.stages[0].weight_specs())])


@pytest.mark.parametrize("text", ["attn_dp=1", SHARDED, "attn_dp=4,attn_tp=4,ep=4,expert_tp=4"])
def test_logits_are_those_of_the_values_worked_out_before(text: str) -> None:
    family = "deepseek_v3"
    layout = Layout() if text == "attn_dp=1" else parse(text, 16, quantised(family))
    program = program_of(family, layout, True)
    found = logits(program, [stored_tree(family, stage) for stage in program.stages])
    assert error(found, expected(family)) < 2e-5
    unquantised = golden(family)[3]
    assert error(found[:, -unquantised.shape[1] :], unquantised) > 1e-3  # something has been lost


def test_drawn_weights_are_those_of_every_layout() -> None:
    def layers(text: str) -> list[Any]:
        program = program_of("gpt_oss", parse(text, 16, quantised("gpt_oss")) if text else Layout(), True)
        (stage,), (held,) = program.stages, drawn(program, jnp.float32)
        graph, described = stage.module(stage.stored_shapes(jnp.float32))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), held) == jax.tree.map(lambda x: (x.shape, x.dtype), described)
        module = nnx.merge(graph, held)
        return [values((layer.attention.weights, layer.ffn.weights)) for layer in module.layers]

    one, other = layers(""), layers("attn_dp=4,attn_tp=4,ep=4,expert_tp=4")
    for layer in one:
        assert sum(map(is_stored, jax.tree.leaves(layer, is_leaf=is_stored))) == 5  # q, kv, o, w13, w2
    one, other = worked_out(one), worked_out(other)
    for shape, (attention, _) in zip(golden("gpt_oss")[0].layers, one, strict=True):
        attention |= {name: repeated_kv(shape.attention, attention[name], 4) for name in ("kv_proj", "kv_bias")}  # pyright: ignore[reportArgumentType]
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_an_input_of_heads_and_dimensions() -> None:
    program = program_of("kimi-k3", Layout(), True)
    attention = program.stages[0].stored_shapes()["layers"][1]["attention"]
    assert attention.o_proj.shape == (32, 16, 8)
    assert attention.o_proj.scale.shape == (4, 16, 1)  # blocks of 8 outputs and the 8 values of a head
    assert attention.qkv_proj.scale.shape == (3, 16, 1, 4)
    assert attention.f_b_proj.dtype == jnp.bfloat16 and attention.A_log.dtype == jnp.float32


def test_repeated_heads_share_no_block() -> None:
    model = golden("gpt_oss")[0]
    whole = replace(model, precision=model.precision.with_formats({"attention": FORMATS["fp8"]}))
    attention: Any = model.layers[0].attention
    for layout in (Layout(), parse("attn_dp=1,attn_tp=16,ep=16", 16, whole)):
        stage = Program.of(whole, golden("gpt_oss")[1], layout, CAPACITY.room(1), None).stages[0]
        stored = stage.stored_shapes()["layers"][0]["attention"]["kv_proj"]
        assert stored.scale.shape == (max(attention.kv_heads, layout.attn_tp), 1)  # not one block of 128 rows
        assert stored.block[0] == 2 * attention.head_dim


def test_rows_of_bytes_that_ranks_cannot_share() -> None:
    axes = axes_of(parse(SHARDED, 16, quantised("deepseek_v3")))
    place = Place((3, 8), FORMATS["mxfp4"], 1, 1, (1, 1), PartitionSpec())
    with pytest.raises(LayoutError, match="has 4 bytes along dimension 1, which 8 ranks cannot share"):
        place.specs(axes.spec(None, "weight_shard"), axes)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-5.2-nvfp4"])
def test_no_scale_travels_in_a_weight_gather(name: str) -> None:
    """At full size, to the byte: what is gathered is the payload that the cost model says."""
    model, last = load_model(name), len(load_model(name).layers) - 1
    text = f"attn_dp=16,ep=16,dispatch=all_to_all,weight_shard=8,weight_shard_layers=0-{last}"
    load = Load(context=np.float64(1024), concurrency=np.float64(16))
    found = audit(model, load_forms(name), parse(text, 16, model), load)
    gathers = [row for row in found.rows if "weight_all_gather" in row.names]
    assert gathers and all(row.agrees for row in found.rows)


def test_a_byte_of_two_values_is_not_cut() -> None:
    model = golden("deepseek_v3")[0]
    odd = replace(model, precision=model.precision.with_formats({"experts": FORMATS["mxfp4"]}))
    layout = parse("attn_dp=1,attn_tp=16,expert_tp=16", 16, odd)
    program = Program.of(odd, golden("deepseek_v3")[1], layout, CAPACITY.room(1), None, stored=True)
    with pytest.raises(ShapeError, match="16 inputs in 16 parts are cut inside a byte"):
        program.stages[0].stored_specs()
