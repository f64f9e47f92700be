"""Whole decoders whose attention is the paged kernel, in interpret mode, against the models of others; and the choice
of forms."""

import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
import pytest

from layouts.audit.traced import step_shapes
from layouts.decoder.cache import Room
from layouts.decoder.choices import attention_form, experts_form, gather_form, kernels_of
from layouts.decoder.program import Program
from layouts.generation.checks import SessionError
from layouts.kernels import ALL_PLAIN, INTERPRETED, MOSAIC, PLAIN, Choice, Kernels
from layouts.layout import Layout
from layouts.moe import grouped
from layouts.text import parse
from layouts.weight_gather.sharded import COPIES
from tests.layouts.decoding import SCORED, error, golden, session_of, teacher_forced

BOUND = 2e-5
PAGED = Kernels(attention=Choice(INTERPRETED))


@pytest.mark.parametrize(
    ("family", "gpus", "text", "interleaved_pages"),
    [
        ("deepseek_v3", 4, "attn_dp=2,dcp=2,ep=4,dcp_backend=a2a", False),
        ("gpt_oss", 4, "attn_tp=4,dcp=2,ep=4,dcp_backend=ag_rs", True),  # every second rank holds nothing
        ("qwen3", 2, "attn_tp=2", False),
    ],
)
def test_the_kernel_gives_what_others_give(family, gpus, text, interleaved_pages):
    model, _, tokens, expected = golden(family)
    layout = parse(text, gpus, model)
    session = session_of(family, layout, interleaved_pages=interleaved_pages, kernels=PAGED, page=64)
    found = teacher_forced(session, tokens, 20)
    assert error(found[:, -SCORED:], expected) < BOUND


def test_the_grouped_gemm_gives_what_others_give():
    model, _, tokens, expected = golden("deepseek_v3")
    layout = parse("attn_dp=2,ep=4,expert_tp=1", 4, model)
    session = session_of("deepseek_v3", layout, kernels=Kernels(grouped_gemm=Choice(INTERPRETED)))
    found = teacher_forced(session, tokens, 20)
    assert error(found[:, -SCORED:], expected) < BOUND


def test_programs_on_cpus_and_without_devices_are_plain():
    model, *_ = golden("llama")
    assert kernels_of(model, Layout(), None, jnp.float32) == ALL_PLAIN


@pytest.mark.parametrize(("family", "tried"), [("llama", ["triton"]), ("deepseek_v3", ["mosaic_gpu", "triton"])])
def test_where_no_kernel_compiles_the_plain_form_is_chosen_and_the_reasons_are_kept(family, tried):
    model, *_ = golden(family)
    found = attention_form(model, Layout(), jnp.float32)
    assert found.form == PLAIN
    assert [line.split(":")[0] for line in found.errors] == tried


def test_experts_take_the_plain_form_on_a_cpu_and_models_without_any_have_no_choice():
    with_biases, without, dense = (golden(family)[0] for family in ("gpt_oss", "deepseek_v3", "llama"))
    for model in (with_biases, without):
        found = experts_form(model, Layout(ep=2, attn_dp=2), jnp.float32)
        assert found.form == PLAIN
        assert found.errors[0].startswith("triton: cpu: the kernel")
    assert experts_form(dense, Layout(), jnp.float32) == ALL_PLAIN.grouped_gemm


def test_only_weights_kept_by_rows_are_gathered_by_copies():
    """A program that gathers none is not noted as one that copies, nor exempt from JAX's check of what is the same."""
    model, *_ = golden("llama")
    kept, whole = (parse(text, 2, model) for text in ("attn_dp=2,weight_shard=2", "attn_dp=2"))
    assert gather_form(kept, jax.devices()) == Choice(COPIES)
    assert gather_form(whole, jax.devices()) == ALL_PLAIN.weight_gather
    for layout in (kept, whole):
        kernels = ALL_PLAIN._replace(weight_gather=gather_form(layout, jax.devices()))
        (stage,) = session_of("llama", layout, kernels=kernels).program.stages
        assert stage.kernels.typed == (layout == whole) and bool(kernels.notes()) == (layout == kept)


@pytest.mark.parametrize(("op", "form"), [("state", MOSAIC), ("attention", INTERPRETED), ("weight_gather", COPIES)])
def test_jax_is_not_asked_to_follow_what_it_cannot(op, form):
    assert not ALL_PLAIN._replace(**{op: Choice(form)}).typed
    assert ALL_PLAIN.typed and ALL_PLAIN._replace(attention=Choice(MOSAIC), state=Choice("triton")).typed


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("family", "text"),
    [("gpt_oss", "attn_tp=2,ep=2"), ("deepseek_v3", "attn_dp=2,ep=2"), ("kimi_linear", "attn_dp=2,ep=2")],
)
def test_jax_follows_what_ranks_share_through_our_kernels(family, text, monkeypatch):
    """A GPU's program is traced whole: a kernel that did not say on which ranks its results differ would be an error.
    The experts' asks for a GPU that is there; what it runs is the same."""
    monkeypatch.setitem(grouped.FORMS, "triton", functools.partial(grouped._with_kernel, False))
    model, forms, *_ = golden(family)
    kernels = Kernels(*(Choice("triton") for _ in range(3)))
    (stage,) = Program.of(model, forms, parse(text, 2, model), Room(64 * 8, 3, 2), None, kernels=kernels).stages
    mesh = cast(jax.sharding.AbstractMesh, stage.mesh)
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types, abstract_device=device)
    stage = dataclasses.replace(stage, mesh=mesh)
    held = stage.module(stage.stored_shapes(jnp.bfloat16))[1]
    caches = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), stage.described_caches(jnp.bfloat16))
    step = step_shapes(stage.part.layout, 2, 2, 128)
    assert stage.kernels.typed
    with jax.sharding.use_abstract_mesh(mesh):
        trace = jax.jit(stage.body("verify")).trace(held, step.tokens, caches, step)
    assert str(trace.jaxpr).count("pallas_call") >= len(model.layers)


def test_pages_that_the_kernel_cannot_read_are_an_error():
    with pytest.raises(SessionError, match=r"pages of 48 rows: .* interpreted reads 64 at a time"):
        session_of("llama", Layout(), kernels=PAGED, page=48)


def test_a_note_says_which_form_runs_and_why_no_faster_one():
    assert ALL_PLAIN.notes() == []
    kernels = Kernels(Choice("triton", ("mosaic_gpu: 8.0: too old",)), grouped_gemm=Choice(PLAIN, ("triton: none",)))
    assert kernels.notes() == [
        "attention runs in form triton; mosaic_gpu: 8.0: too old",
        "grouped gemm runs in form xla; triton: none",
    ]


def test_prompts_of_any_length_go_through_the_kernel_too():
    """Prefilled rows behind a request's last token see pages that hold nothing."""
    _, _, tokens, expected = golden("gpt_oss")
    session = session_of("gpt_oss", Layout(), kernels=PAGED, page=64)
    requests, known = [session.admit() for _ in tokens], expected.shape[1]
    ends = [tokens.shape[1] - 4, tokens.shape[1] - known + 2]
    found = session.prefill({r: line[:end].tolist() for r, line, end in zip(requests, tokens, ends, strict=True)})
    for request, logits, end in zip(requests, expected, ends, strict=True):
        scored = found[request].logits[0]
        assert error(scored, logits[end - 1 - tokens.shape[1]]) < BOUND
