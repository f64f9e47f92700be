"""The exchanges between attention and experts, there and back, as engines make them, and whose rows stay where."""

from dataclasses import replace

from hw.work import CollectiveKind
from layouts.expression import Expr
from layouts.moe.shape import MoE
from layouts.op import Op, exchange
from layouts.symbols import (
    ATTN_TP,
    BY_ALL_TO_ALL,
    BY_MAX_LEN,
    BY_ONE_GROUP,
    BY_SUM_LEN,
    COPIES_IN_GROUP,
    EXPERT_GROUP,
    HAS_GROUPS,
    MOE_ROWS,
    ROWS,
)

_BF16 = 2


def around(ffn: MoE) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Exchanges of a layer before its experts (attention outputs are a sum over the group) and behind them."""
    return _around_latent(ffn) if ffn.latent else _around_experts(ffn)


def _around_experts(ffn: MoE) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Rows scattered over the attention group (then dispatched, or gathered by all), or summed where they are; and the
    way back, at whose end each rank has all rows of its attention group."""
    own, every = ROWS * (_BF16 * ffn.hidden), MOE_ROWS * (_BF16 * ffn.hidden)
    scattered = BY_ALL_TO_ALL + BY_MAX_LEN
    there = (
        exchange("attention_reduce_scatter", CollectiveKind.REDUCE_SCATTER, own, ATTN_TP, share=scattered),
        exchange("dp_all_gather", CollectiveKind.ALL_GATHER, every, EXPERT_GROUP, share=BY_MAX_LEN),
        exchange("dp_sum_gather", CollectiveKind.ALL_REDUCE, every, EXPERT_GROUP, share=BY_SUM_LEN),
        exchange("attention_all_reduce", CollectiveKind.ALL_REDUCE, own, ATTN_TP, share=BY_ONE_GROUP),
    )
    back = (
        exchange("dp_reduce_scatter", CollectiveKind.REDUCE_SCATTER, every, EXPERT_GROUP, share=BY_MAX_LEN),
        exchange("moe_all_reduce", CollectiveKind.ALL_REDUCE, every, EXPERT_GROUP, share=BY_SUM_LEN + BY_ONE_GROUP),
        exchange("moe_all_gather", CollectiveKind.ALL_GATHER, own, ATTN_TP, share=scattered),
    )
    return there, back


def _around_latent(ffn: MoE) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """On a latent width the experts' sum has a norm behind it, so what is gathered is summed before it leaves them,
    latent and shared part each in a message, and every rank has the whole of it (SGLang 0.5.23, models/kimi_k3.py:
    rows are read once the attention's sum is complete, then gathered; `_forward_fused`, for a shared expert in bf16,
    joins the two messages, or sends the second on a side stream)."""
    own, every = ROWS * (_BF16 * ffn.hidden), MOE_ROWS * (_BF16 * ffn.hidden)
    gathered, shared = BY_MAX_LEN + BY_SUM_LEN + BY_ONE_GROUP, bool(ffn.shared_intermediate)
    latent = MOE_ROWS * (_BF16 * ffn.latent)
    there = (
        exchange("attention_reduce_scatter", CollectiveKind.REDUCE_SCATTER, own, ATTN_TP, share=BY_ALL_TO_ALL),
        exchange("attention_all_reduce", CollectiveKind.ALL_REDUCE, own, ATTN_TP, share=gathered),
        # rows that all ranks of the group have are cut into parts as if they were a sum (layers/dp_attention.py,
        # `_dp_gather_via_all_gather`); the program takes its part where it is
        replace(
            exchange("dp_own_rows", CollectiveKind.REDUCE_SCATTER, own, ATTN_TP, share=BY_MAX_LEN * HAS_GROUPS),
            program=False,
        ),
        exchange("dp_all_gather", CollectiveKind.ALL_GATHER, every, EXPERT_GROUP, share=BY_MAX_LEN),
        exchange("dp_sum_gather", CollectiveKind.ALL_REDUCE, every, EXPERT_GROUP, share=BY_SUM_LEN),
    )
    back = (
        exchange("moe_latent_all_reduce", CollectiveKind.ALL_REDUCE, latent, EXPERT_GROUP, share=gathered),
        *([exchange("moe_shared_all_reduce", CollectiveKind.ALL_REDUCE, every, EXPERT_GROUP, share=gathered)] * shared),
        exchange("moe_copies_gather", CollectiveKind.ALL_GATHER, own, COPIES_IN_GROUP, share=BY_MAX_LEN),
        exchange("moe_all_gather", CollectiveKind.ALL_GATHER, own, ATTN_TP, share=BY_ALL_TO_ALL),
    )
    return there, back


def kept_rows() -> Expr:
    """Rows that a rank keeps between attention and experts: its part of the group's where they travel, else all."""
    return ROWS / ATTN_TP * BY_ALL_TO_ALL + ROWS * (BY_MAX_LEN + BY_SUM_LEN + BY_ONE_GROUP)
