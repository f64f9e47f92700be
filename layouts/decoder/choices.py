"""Which form of each op the devices at hand run, found by compiling it at the shapes of a rank before any step is."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeGuard

import jax
import jax.numpy as jnp

import layouts.kda.verify as states
import layouts.mla.attend as latents
import layouts.moe.grouped as experts
import layouts.paged.attend as pairs
from layouts.decoder.processes import span_processes
from layouts.dense.activation import SwiGLU
from layouts.gqa import GQA
from layouts.gqa.sharded import entry_of, own_kv_heads
from layouts.kda import KDA
from layouts.kda.chunked import Writes
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from layouts.kernels import ALL_PLAIN, PLAIN, Choice, Kernels, first_form
from layouts.layout import Layout
from layouts.mla import MLA
from layouts.models.layer import Attention
from layouts.models.model import Model
from layouts.moe import MoE
from layouts.moe.reference import Experts
from layouts.paged import RUN, Pages
from layouts.weight_gather.sharded import COPIES

_REQUESTS: Final = 16
_RUNS: Final = 8
_ROWS: Final = (16, 2048)  # tokens of the experts, of a decode step and of a prefill
_VERIFIED: Final = (1, 8)  # tokens of a request that linear attention scores
_WIDTHS: Final = (1, 64)  # rows of a request: of a decode step, and as many as fill the largest block


def kernels_of(model: Model, layout: Layout, devices: Sequence[Any] | None, dtype: jax.typing.DTypeLike) -> Kernels:
    """The forms for a rank of a layout; the plain ones without devices, and on CPUs."""
    if devices is None or devices[0].platform == "cpu":
        return ALL_PLAIN
    with jax.default_device(devices[0]):
        return ALL_PLAIN._replace(
            attention=attention_form(model, layout, dtype),
            state=state_form(model, layout),
            grouped_gemm=experts_form(model, layout, dtype),
            weight_gather=gather_form(layout, devices),
        )


def gather_form(layout: Layout, devices: Sequence[Any]) -> Choice:
    """Copies where one process has the cards of every weight-shard group: XLA makes them by copy engines. No choice
    where no weight is sharded."""
    if not layout.weight_shard_layers.any:
        return ALL_PLAIN.weight_gather
    if span_processes(devices[: layout.gpus]):
        return Choice(PLAIN, (f"{COPIES}: ranks of several processes do not copy from each other",))
    return Choice(COPIES)


def attention_form(model: Model, layout: Layout, dtype: jax.typing.DTypeLike) -> Choice:
    """The first form that compiles for every attention of the model over a paged pool, on the default device."""
    paged = {layer.attention for layer in model.layers if _is_paged(layer.attention)}
    if not paged:
        return ALL_PLAIN.attention
    forms = latents.TRIED if any(isinstance(a, MLA) for a in paged) else pairs.TRIED

    def compiled(form: str) -> None:
        for attention in paged:
            for width in _WIDTHS:
                run, shapes = _probe(attention, layout, width, form, dtype)
                jax.jit(run).lower(*shapes).compile()

    return first_form("attention", forms, compiled)


def state_form(model: Model, layout: Layout) -> Choice:
    """The first form that compiles for every linear attention of the model, one token and several, on the default
    device."""
    linear = {layer.attention for layer in model.layers if isinstance(layer.attention, KDA)}
    if not linear:
        return ALL_PLAIN.state

    def compiled(form: str) -> None:
        for kda in linear:
            for count in _VERIFIED:
                jax.jit(states.FORMS[form]).lower(*_verified(kda, layout, count)).compile()

    return first_form("linear attention", states.TRIED, compiled)


def _verified(kda: KDA, layout: Layout, count: int) -> tuple[Tokens, Any, Writes, Standing]:
    """Tokens of requests and the slots of a rank."""
    described: Any = jax.ShapeDtypeStruct
    heads, dim = kda.heads // layout.attn_tp, kda.head_dim
    vectors = described((_REQUESTS, count, heads, dim), jnp.float32)
    kept = described((_REQUESTS + 1, count, heads, dim), jnp.float32)
    each = described((_REQUESTS,), jnp.int32)
    return (
        Tokens(vectors, vectors, vectors, vectors, described((_REQUESTS, count, heads), jnp.float32)),
        described((_REQUESTS + 1, heads, dim, dim), jnp.float32),
        Writes(kept, kept, kept),
        Standing(each, each, described((_REQUESTS,), jnp.bool_)),
    )


def experts_form(model: Model, layout: Layout, dtype: jax.typing.DTypeLike) -> Choice:
    """The first form that compiles for the routed experts of every layer, few rows and many, on the default device."""
    mixtures = {layer.ffn for layer in model.layers if isinstance(layer.ffn, MoE)}
    if not mixtures:
        return ALL_PLAIN.grouped_gemm

    def compiled(form: str) -> None:
        for moe in mixtures:
            for rows in _ROWS:
                experts.compile_form(form, *_routed(moe, layout, rows, dtype), SwiGLU())

    return first_form("grouped GEMM", experts.TRIED, compiled)


def _routed(moe: MoE, layout: Layout, rows: int, dtype: jax.typing.DTypeLike) -> tuple[Any, Any, Any]:
    """Rows, their experts, and those that a rank holds."""
    described: Any = jax.ShapeDtypeStruct
    held, intermediate = moe.experts // layout.ep, moe.intermediate // layout.expert_tp
    cut = (
        (held, 2, intermediate, moe.width),
        (held, moe.width, intermediate),
        (held, 2, intermediate) if moe.bias else None,
        (held, moe.width) if moe.bias else None,
    )
    arrays: Any = (None if shape is None else described(shape, dtype) for shape in cut)
    return described((rows, moe.width), dtype), described((rows, moe.topk), jnp.int32), Experts(*arrays)


def _is_paged(attention: Attention) -> TypeGuard[MLA | GQA]:
    return isinstance(attention, GQA) or (isinstance(attention, MLA) and attention.indexer is None)


def _probe(
    attention: MLA | GQA, layout: Layout, width: int, form: str, dtype: jax.typing.DTypeLike
) -> tuple[Any, Iterable[Any]]:
    """Attention of one rank of a DCP group, which has the heads of the whole group."""
    heads = max(attention.heads * layout.dcp // layout.attn_tp, 1)
    described: Any = jax.ShapeDtypeStruct
    by_row = described((_REQUESTS, width), jnp.int32)
    pages = Pages(described((_REQUESTS, _RUNS), jnp.int32), by_row)
    rows = _REQUESTS * _RUNS * RUN
    if isinstance(attention, MLA):
        query, pool = (_REQUESTS, width, heads, attention.kv_values), (rows, attention.kv_values)
        run = partial(latents.attend_pages, scale=1.0, latent=attention.kv_lora, form=form)
    else:
        query = (_REQUESTS, width, heads, attention.head_dim)
        pool = (rows, own_kv_heads(attention, layout.attn_tp), 2 * attention.head_dim)
        pages = pages._replace(lows=by_row) if attention.window else pages
        run = partial(pairs.attend_pages, entry=entry_of(attention), scale=1.0, run=RUN, form=form)
    return run, (described(query, dtype), described(pool, dtype), pages)
