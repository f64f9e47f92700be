"""Grouped-query attention, full or inside a sliding window."""

from collections.abc import Sequence

from hw.work import Family, Rate
from layouts.combine.work import combine
from layouts.expression import Expr
from layouts.gqa.shape import GQA
from layouts.op import Op, gemms
from layouts.symbols import ATTN_TP, DCP, KV_TOKENS, PREFIX_TOKENS, ROWS, VERIFY, WINDOW_TOKENS
from layouts.tensor import Precision, Tensor

_BF16 = 2


def decode(gqa: GQA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step."""
    tokens = WINDOW_TOKENS if gqa.window else KV_TOKENS
    heads = DCP * gqa.heads / ATTN_TP
    core = _core("gqa_decode", gqa, precision, tokens * VERIFY * heads, tokens)
    return (*gemms(tensors, precision), core, *combine(gqa.heads, gqa.head_dim, gqa.head_dim))


def prefill(gqa: GQA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk; a window bounds the keys of a row at the window."""
    core = _core("gqa_prefill", gqa, precision, ROWS * PREFIX_TOKENS * gqa.heads / ATTN_TP, KV_TOKENS)
    return (*gemms(tensors, precision), core)


def _core(name: str, gqa: GQA, precision: Precision, pairs: Expr, tokens: Expr) -> Op:
    """Attention over `pairs` of (query head, key): 2 x head_dim for scores and as many for values."""
    return Op(
        name,
        family=Family.ATTENTION,
        rate=Rate.BF16,
        flops=pairs * (4 * gqa.head_dim),
        bytes=tokens * gqa.kv_bytes(precision["kv"].name) + ROWS * (2 * _BF16 * gqa.heads * gqa.head_dim) / ATTN_TP,
    )
