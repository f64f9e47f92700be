"""The ledger's lines: what lives on one GPU, each with the rule that gives its bytes.

A line is an expression over the layout's quantities; the exact ones are engines' rules, the estimated ones carry the
source of their figure and a range. Graphs and what is allocated after the pools live inside the reserve that the
memory fraction leaves, so they are never added to it.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Final

from explorer.residents import estimates
from explorer.residents.line import AS_PUBLISHED, Group, Holding, Line
from layouts.csa import CSA
from layouts.dsa.shape import Indexer
from layouts.expression import ONE, ZERO, Expr, total
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.models.model import Model
from layouts.moe import MoE
from layouts.serving.buffers import deepep_buffer_bytes, request_table_bytes, sent_width, slot_map_bytes
from layouts.symbols import (
    ATTN_TP,
    BY_ALL_TO_ALL,
    DCP,
    DISPATCH_TOKENS,
    DRAFT_WINDOW,
    EP,
    EXPERT_TP,
    GLOBAL_KV_TOKENS,
    ONE_STAGE,
    PP,
    REPLICATED_Q,
    REQUESTS,
    SLOTS,
    VERIFY_COPIES,
    VOCAB_TP,
    WINDOW_HELD,
    layers_of,
    sharded_layers_of,
)
from layouts.tensor import COMPONENTS, Precision, Tensor

RING: Final = 16  # tokens of a ReplaySSM ring (SGLang `--linear-replayssm-cache-len`)


def fixed_lines(model: Model, prefill: bool = False, holding: Holding = AS_PUBLISHED) -> tuple[Line, ...]:
    """Every line but the KV pool and the staging buffers; `explorer.residents.budget` adds those two."""
    return (
        estimates.process_groups(),
        *_weight_lines(model, holding.dense_ranks),
        *_copies(model, holding),
        *_state_lines(model),
        *_reserve_lines(model, prefill, holding),
    )


def kv_bytes_a_token(model: Model) -> Expr:
    """Bytes that one token slot of a rank's pool takes in all layers of the stage.

    Under DCP a rank holds 1/dcp of the tokens, but the index keys of sparse attention for all of them.
    """
    kind = model.precision["kv"].name
    own = total(
        layers_of(k) * la.attention.kv_bytes(kind) for k, la in enumerate(model.kinds) if not _window(la.attention)
    )
    index = total(layers_of(k) * _index_bytes(la.attention) * DCP for k, la in enumerate(model.kinds))
    draft = model.draft
    if draft is None or draft.kv != "token":
        return own + index
    keys = total(Expr.of(_index_bytes(la.attention)) * DCP for la in draft.layers)
    return own + index + draft.kv_bytes(kind) + keys


def _window(attention: object) -> int:
    return attention.window if isinstance(attention, GQA) else 0


def _index_bytes(attention: object) -> Fraction | int:
    if isinstance(attention, CSA):
        return Fraction(attention.index_bytes, attention.ratio or 1)
    indexer = attention.indexer if isinstance(attention, MLA) else None
    return indexer.key_bytes if isinstance(indexer, Indexer) else 0


def _weight_lines(model: Model, dense_ranks: int | None) -> tuple[Line, ...]:
    lines = []
    shared = {} if dense_ranks is None else {"dense_tp": Expr.of(dense_ranks)}
    for component in COMPONENTS:
        parts = [
            _resident(t, model.precision, layers_of(k), sharded_layers_of(k))
            for k, layer in enumerate(model.kinds)
            for t in layer.tensors()
            if t.component == component
        ]
        parts += [
            t.resident(model.precision) * (ONE_STAGE if t.rows is None and t.inp > 1 else 1)
            for t in model.vocabulary()
            if t.component == component
        ]
        if any(parts):
            size = total(parts).substitute(shared)
            lines.append(Line(f"weights: {component}", Group.WEIGHTS, size, "shapes of the config"))
    if model.table_bytes:
        tables = Expr.of(model.table_bytes)
        lines.append(Line("rotary tables", Group.WEIGHTS, tables, "max_position_embeddings, one a rotary base"))
    if model.vision:
        held = total(t.resident(model.precision) for t in model.vision)
        lines.append(Line("weights: vision tower", Group.WEIGHTS, held, "vision_config, cut over attention TP"))
    if model.draft is not None:
        held = total(t.resident(model.precision) for t in model.draft.tensors())
        lines.append(Line("weights: draft layers", Group.WEIGHTS, held, "shapes of the draft"))
    return tuple(lines)


def _copies(model: Model, holding: Holding) -> Iterable[Line]:
    """What the engine keeps twice. w_kc and w_vc are made of kv_b_proj, which stays: prefill multiplies with it whole
    (SGLang 0.5.23 `post_load_weights`, vLLM 0.33.0 `process_weights_after_loading`); some builds release it."""
    halved = [(layers_of(k), la.attention.kv_b) for k, la in enumerate(model.kinds) if isinstance(la.attention, MLA)]
    if halved and not model.defaults.get("kv_b_released", False):
        kept = total(layers * kv_b.resident(model.precision) for layers, kv_b in halved)
        yield Line("weights: kv_b beside its halves", Group.WEIGHTS, kept, "shapes of the config; engines keep both")
    if holding.redundant_experts:
        more = Expr.of(holding.redundant_experts) / EP
        experts = total(
            layers_of(k) * replace(t, copies=more).resident(model.precision)
            for k, layer in enumerate(model.kinds)
            for t in layer.tensors()
            if t.copies != ONE
        )
        yield Line("weights: redundant experts", Group.WEIGHTS, experts, "shapes of the config, redundant experts / ep")
    if holding.shared_clones > 1:
        clones = Expr.of(holding.shared_clones - 1) / EXPERT_TP
        shared = total(
            layers_of(k) * replace(t, copies=clones, cut=ONE, shard=None).resident(model.precision)
            for k, layer in enumerate(model.kinds)
            for t in layer.tensors()
            if t.component == "shared" and t.rows is not None
        )
        yield Line("weights: shared expert clones", Group.WEIGHTS, shared, "clones among the routed experts, less one")
    if holding.whole_embedding and not model.tied:
        embed = replace(model.vocabulary()[0], cut=ONE).resident(model.precision)
        more = (embed / ATTN_TP + embed / VOCAB_TP * -1) * ONE_STAGE
        source = "whole in every attention group, the head is cut further"
        yield Line("weights: embedding copies", Group.WEIGHTS, more, source)


def _resident(tensor: Tensor, precision: Precision, layers: Expr, sharded: Expr) -> Expr:
    """A tensor of one kind of layer over all its layers: whole in some, one part of its rows in the others."""
    whole = tensor.payload(precision)
    kept = layers * tensor.scales(precision)
    if tensor.shard is None:
        return kept + layers * whole
    return kept + (layers + sharded * -1) * whole + sharded * whole / tensor.shard


def _state_lines(model: Model) -> tuple[Line, ...]:
    """Pools with one slot a request: recurrent states, replay rings, the window of a draft."""
    states = [(layers_of(k), la.attention) for k, la in enumerate(model.kinds) if isinstance(la.attention, KDA)]
    kind = model.precision["state"].name
    lines = []
    if states:
        held = total(n * a.state_bytes(VERIFY_COPIES, kind) for n, a in states)
        lines.append(Line("linear-attention state", Group.STATE, SLOTS * held, "state slots x bytes of a slot"))
    held = _window_bytes(model)
    if held:
        source = "what running requests need; SGLang's --swa-full-tokens-ratio may set more aside"
        lines.append(Line("sliding-window KV", Group.STATE, REQUESTS * PP * WINDOW_HELD * held, source))
    pending = [(layers_of(k), la.attention) for k, la in enumerate(model.kinds) if isinstance(la.attention, CSA)]
    if pending:
        held = total(n * a.state_bytes for n, a in pending)
        lines.append(Line("compressor state", Group.STATE, SLOTS * held, "state slots x tokens of unfinished rows"))
    if states and model.draft is not None:
        ring = total(n * a.replay_bytes(RING) for n, a in states)
        lines.append(Line("ReplaySSM ring", Group.STATE, SLOTS * ring, f"state slots x a ring of {RING} tokens"))
    if model.draft is not None and model.draft.kv == "window":
        slot = model.draft.kv_bytes(model.precision["kv"].name)
        lines.append(Line("draft KV", Group.STATE, SLOTS * DRAFT_WINDOW * slot, "state slots x window slots"))
    return tuple(lines)


def _window_bytes(model: Model) -> Expr:
    """Bytes of one token in all layers with a window; DCP leaves the windows beside compressed rows whole."""
    kind = model.precision["kv"].name
    cut = total(layers_of(k) * la.attention.kv_bytes(kind) for k, la in enumerate(model.kinds) if _window(la.attention))
    drafted = () if model.draft is None else tuple(la.attention for la in model.draft.layers)
    rows = [(layers_of(k), la.attention) for k, la in enumerate(model.kinds)] + [(ONE, a) for a in drafted]
    return cut / DCP + total(n * a.row_bytes(kind) for n, a in rows if isinstance(a, CSA))


def _reserve_lines(model: Model, prefill: bool, holding: Holding) -> tuple[Line, ...]:
    """What is allocated after the pools: tables and buffers by rule, graphs and workspaces by estimate."""
    lines = [
        Line(
            "req_to_token",
            Group.RESERVE,
            request_table_bytes(SLOTS, model.context_limit),
            "one int32 a slot and position",
        ),
        *_named("replicated Q projections", _replicated_queries(model), "all heads of the DCP group, whole copies"),
        *_named("DeepEP buffer", _deepep(model, prefill, holding), "DeepEP low-latency layout, two halves"),
    ]
    if model.draft is not None and model.draft.kv == "window":
        lines.append(
            Line("draft slot map", Group.RESERVE, slot_map_bytes(GLOBAL_KV_TOKENS), "int64 over the group's KV slots")
        )
    lines.append(estimates.activations() if prefill else estimates.cuda_graphs(model))
    return (*lines, estimates.workspaces())


def _named(name: str, size: Expr, provenance: str) -> Iterable[Line]:
    return (Line(name, Group.RESERVE, size, provenance),) if size else ()


def _replicated_queries(model: Model) -> Expr:
    copied = [
        layers_of(k) * t.payload(model.precision) * DCP * REPLICATED_Q
        for k, layer in enumerate(model.kinds)
        for t in layer.tensors()
        if t.work_cut is not None
    ]
    return total(copied)


def _deepep(model: Model, prefill: bool, holding: Holding) -> Expr:
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MoE)]
    if not moes or prefill or not holding.exchange_buffer:
        return ZERO
    width, experts = sent_width(moes[0].width), moes[0].experts + holding.redundant_experts
    return deepep_buffer_bytes(DISPATCH_TOKENS, width, experts) * BY_ALL_TO_ALL
