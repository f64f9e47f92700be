"""A model's step as blocks: embedding, one block a kind of layer, logits, draft. Each is a list of ops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import layouts.csa.work as csa
import layouts.dense.work as dense
import layouts.gqa.work as gqa
import layouts.kda.work as kda
import layouts.mla.work as mla
import layouts.moe.work as moe
from hw.work import CollectiveKind
from layouts.csa import CSA
from layouts.expression import ONE, ZERO, Expr, Number, total
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.models.layer import Layer
from layouts.models.model import Model
from layouts.moe import MoE
from layouts.moe.around import around, kept_rows
from layouts.op import Op, exchange, gemms
from layouts.program_side import program_ops
from layouts.residual.work import block_bytes, norm
from layouts.symbols import (
    ATTN_CP,
    ATTN_TP,
    BATCH,
    BY_MAX_LEN,
    BY_SUM_LEN,
    CHOSEN_TOKENS,
    DRAFT_ROWS,
    DRAFT_TOKENS,
    DRAFT_VERIFY,
    GATHERS_ATTENTION,
    HANDED_BLOCKS,
    LOGIT_ROWS,
    MOE_ROWS,
    ONE_STAGE,
    PP,
    ROWS,
    TP,
    VERIFY,
    VOCAB_GROUPS,
)
from layouts.tensor import Precision, Tensor
from layouts.vocab.work import embed, logits
from layouts.weight_gather.work import gathered_bytes, weight_gather

_BF16: Final = 2
_INT32: Final = 4
Body = Callable[[Any, Sequence[Tensor], Precision], tuple[Op, ...]]
_DECODE: Final[Mapping[type, Body]] = {MLA: mla.decode, KDA: kda.decode, GQA: gqa.decode, CSA: csa.decode}
_PREFILL: Final[Mapping[type, Body]] = {MLA: mla.prefill, KDA: kda.prefill, GQA: gqa.prefill, CSA: csa.prefill}

# A draft pass is the same layer on other rows: every row count shrinks alike.
_ROW_COUNTS: Final = ("moe_rows", "dense_rows", "shared_rows", "expert_rows", "vocab_rows", "logit_rows")
_DRAFT_PASS: Final[Mapping[str, Expr]] = {
    "rows": DRAFT_ROWS,
    "verify": DRAFT_VERIFY,
    **{name: Expr.symbol(name) * DRAFT_ROWS / ROWS for name in _ROW_COUNTS},
}
# A draft with a window of its own is cut by heads alone: DCP leaves it whole.
_WINDOW_PASS: Final = {
    **_DRAFT_PASS,
    "kv_tokens": DRAFT_TOKENS,
    "window_tokens": DRAFT_TOKENS,
    "dcp": ONE,
    "has_dcp": ZERO,
}


@dataclass(frozen=True)
class Block:
    """Ops of one part of the step and the bytes of its gathered weights (zero where nothing is sharded). `attention`:
    which of the ops are the attention's own."""

    name: str
    ops: tuple[Op, ...]
    staging: Expr = ZERO
    attention: range = range(0)


@dataclass(frozen=True)
class StepBlocks:
    """A whole step. `sequence` names the block at each position, in the order in which a rank runs them; `target`
    and `draft` are the positions of the model's own layers and of the draft's."""

    blocks: tuple[Block, ...]
    sequence: tuple[int, ...]
    target: range
    draft: range


def step_blocks(model: Model, prefill: bool = False, program: bool = False) -> StepBlocks:
    """Blocks of a decode step (embedding, layers, logits, draft passes) or of a prefill chunk (no draft). `program`:
    as the JAX program takes it (`layouts.program_side`)."""
    precision = model.precision
    layers = tuple(
        _layer_block(layer, layer.label, precision, prefill, model.layers_of_kind(kind))
        for kind, layer in enumerate(model.kinds)
    )
    head = Block("head", (*embed(model.hidden), *_stage_hops(model)))
    tail = Block(
        "tail", (*_last_norm(model), *logits(_lm_head(model), precision), *(() if prefill else _commit(model)))
    )
    draft, passes = ((), 0) if prefill or model.draft is None else (_draft_blocks(model), model.draft.passes)
    target = tuple(1 + kind for kind in model.kind_of_layer)
    drafted = _draft_sequence(model, 2 + len(layers)) * passes
    blocks = (head, *layers, tail, *draft)
    return StepBlocks(
        blocks=tuple(replace(b, ops=program_ops(b.ops)) for b in blocks) if program else blocks,
        sequence=(0, *target, 1 + len(layers), *drafted),
        target=range(1, 1 + len(target)),
        draft=range(2 + len(target), 2 + len(target) + len(drafted)),
    )


def _layer_block(
    layer: Layer, name: str, precision: Precision, prefill: bool = False, places: Sequence[int] = ()
) -> Block:
    """`places`: which layers of the model are of this kind; only a mixing stream needs to know."""
    tensors = layer.tensors()
    attention, ffn = len(layer.attention.tensors()), len(layer.ffn.tensors())
    before, after = (0, 0) if layer.residual is None else layer.residual.mean_blocks(places)
    body = _body(layer, prefill)(layer.attention, tensors[:attention], precision)
    ops = (
        norm("input_norm", _read_by_attention(layer), layer.hidden, before),
        *body,
        *(_prompt_gather(layer, precision) if prefill else ()),
        *_feed_forward(layer, tensors[attention : attention + ffn], precision, after),
        *weight_gather(tensors, precision),
    )
    return Block(name, ops, gathered_bytes(tensors, precision), attention=range(1, 1 + len(body)))


def _last_norm(model: Model) -> tuple[Op, ...]:
    """The norm before the logits, on the rows whose logits are wanted."""
    blocks = 0 if model.residual is None else model.residual.blocks_before(len(model.layers))
    return (norm("final_norm", LOGIT_ROWS / VOCAB_GROUPS, model.hidden, blocks),)


def _body(layer: Layer, prefill: bool) -> Body:
    return (_PREFILL if prefill else _DECODE)[type(layer.attention)]


def _feed_forward(layer: Layer, tensors: Sequence[Tensor], precision: Precision, blocks: Number) -> tuple[Op, ...]:
    """From attention output to the next layer's input: sum over the attention group, MLP or experts, sum again."""
    if isinstance(layer.ffn, MoE):
        to_experts, from_experts = around(layer.ffn)
        return (
            *to_experts,
            norm("post_attention_norm", _read_by_experts(layer), layer.hidden, blocks),
            *moe.work(layer.ffn, tensors, precision),
            *from_experts,
        )
    whole = ROWS * (_BF16 * layer.hidden)
    return (
        exchange("attention_all_reduce", CollectiveKind.ALL_REDUCE, whole, ATTN_TP),
        norm("post_attention_norm", ROWS, layer.hidden, blocks),
        *dense.work(layer.ffn, tensors, precision),
        exchange("mlp_all_reduce", CollectiveKind.ALL_REDUCE, whole, ATTN_TP),
    )


def _read_by_attention(layer: Layer) -> Expr:
    """Rows whose norm a rank computes before attention. Those that the experts left on it are normed and then gathered,
    but a mixing stream is gathered first (SGLang 0.5.23, layers/layer_boundary: `reads_after_attn_tp_gather`). The
    layer before is taken to be of the same kind: the first one with experts is priced too low."""
    after_experts = isinstance(layer.ffn, MoE) and layer.residual is None
    return kept_rows() if after_experts else ROWS


def _read_by_experts(layer: Layer) -> Expr:
    """Rows whose norm a rank computes before the experts. A gather that also completes the attention's sum stands
    before the norm; rows that are whole on each rank, as without attention TP, are normed and then gathered, and a
    mixing stream always is (SGLang 0.5.23, layers/layer_boundary/boundary.py: `_dp_gather_sum_read`)."""
    if layer.residual is not None:
        return kept_rows()
    whole = (BY_MAX_LEN + BY_SUM_LEN) * GATHERS_ATTENTION  # attn_tp = 1
    return MOE_ROWS + (ROWS + MOE_ROWS * -1) * whole


def _prompt_gather(layer: Layer, precision: Precision) -> tuple[Op, ...]:
    """Prefill context parallelism: the keys and values of the other parts of the chunk come to every rank."""
    held = ROWS * ATTN_CP * layer.attention.kv_bytes(precision["kv"].name)
    return (exchange("cp_kv_all_gather", CollectiveKind.ALL_GATHER, held, ATTN_CP, stride=ATTN_TP),) if held else ()


def _stage_hops(model: Model) -> tuple[Op, ...]:
    """What goes from stage to stage, pp - 1 times: hidden states and residual of a micro-batch's rows; of a mixing
    stream their sum, and its blocks so far (half of all on average). A rank sends its part of the rows to its like in
    the next stage, where the attention group gathers them (SGLang 0.5.23, distributed/parallel_state.py:
    `send_tensor_dict`); all gathers are one op here, with the latency of one."""
    hops, states = PP + Expr.of(-1), block_bytes(ROWS, model.hidden, 1)
    # the program hands on the sum, whole on each rank, and what an index chose
    chosen = BATCH * VERIFY * CHOSEN_TOKENS * _INT32 if model.sparse else ZERO
    program = (states + chosen) * hops
    if model.residual is None:
        handed = states * 2 * hops
    else:
        half = Fraction(model.residual.blocks_before(len(model.layers)), 2)
        handed = (states + block_bytes(ROWS, model.hidden, half)) * hops
        program += states * HANDED_BLOCKS
    gather = exchange("pp_all_gather", CollectiveKind.ALL_GATHER, handed, ATTN_TP, share=ONE + ONE_STAGE * -1)
    return (
        exchange("pp_send", CollectiveKind.SEND, handed / ATTN_TP, PP, stride=TP, program_payload=program),
        replace(gather, program=False),
    )


def _lm_head(model: Model) -> Tensor:
    return next(t for t in model.vocabulary() if t.rows is not None)


def _commit(model: Model) -> tuple[Op, ...]:
    """Linear-attention states brought up to the accepted token once a draft was verified, all layers in one go."""
    states = [kda.commit(la.attention, model.precision) for la in model.layers if isinstance(la.attention, KDA)]
    if not states or model.draft is None:
        return ()
    return (replace(states[0], bytes=total(s.bytes for s in states)),)


def _draft_blocks(model: Model) -> tuple[Block, ...]:
    """The blocks of one draft pass: what stands before its layers, its kinds of layer, its logits (target's head)."""
    draft, precision = model.draft, model.precision
    assert draft is not None
    pass_ = _WINDOW_PASS if draft.kv == "window" else _DRAFT_PASS
    layers = tuple(_layer_block(la, f"draft {la.label}", precision) for la in dict.fromkeys(draft.layers))
    passed = (*layers, Block("draft out", logits(_lm_head(model), precision)))
    return (
        Block("draft in", gemms(draft.extra, precision)),  # its rows are the draft's own, or those just verified
        *(replace(b, ops=tuple(op.substitute(pass_) for op in b.ops)) for b in passed),
    )


def _draft_sequence(model: Model, first: int) -> tuple[int, ...]:
    """Block of each position of one draft pass, the first of them numbered `first`."""
    if model.draft is None:
        return ()
    kinds = list(dict.fromkeys(model.draft.layers))
    return (first, *(first + 1 + kinds.index(la) for la in model.draft.layers), first + 1 + len(kinds))
