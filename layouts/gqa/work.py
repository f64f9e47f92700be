"""Grouped-query attention, full or inside a sliding window."""

from collections.abc import Sequence

from hw.tables import Kind
from hw.work import Family, Rate
from layouts.combine.work import combine, merge
from layouts.expression import ONE, Expr
from layouts.gqa.shape import GQA
from layouts.op import Op, Problem, elementwise, gemms
from layouts.symbols import (
    ATTENTION_PADDING,
    ATTN_TP,
    DCP,
    KV_HEAD_RANKS,
    KV_TOKENS,
    PREFIX_TOKENS,
    REQUESTS,
    ROWS,
    TABLE_TOKENS,
    VERIFY,
    WINDOW_PREFIX_TOKENS,
    WINDOW_TABLE_TOKENS,
    WINDOW_TOKENS,
)
from layouts.tensor import Precision, Tensor

_BF16 = 2
_PREPARED = 5  # kernels of the program: queries cut out, normed and turned, keys normed, pairs written


def decode(gqa: GQA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step."""
    tokens = WINDOW_TOKENS if gqa.window else KV_TOKENS
    room = (WINDOW_TABLE_TOKENS if gqa.window else TABLE_TOKENS) * VERIFY
    heads = DCP * gqa.heads / ATTN_TP
    sizes = {"heads": heads, "requests": REQUESTS, "tokens": KV_TOKENS / REQUESTS, "verify": VERIFY}
    asked = _problem(Kind.HEADS_DECODE, gqa, precision, sizes)
    core = _core("gqa_decode", Family.ATTENTION_HEADS, gqa, precision, heads, tokens * VERIFY, tokens, asked, room)
    exchanges = combine(gqa.heads, gqa.head_dim, gqa.head_dim, False)
    merged = merge(gqa.heads, gqa.head_dim)
    return (*gemms(tensors, precision), _prepare(gqa), core, merged, *exchanges)


def prefill(gqa: GQA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk; a window bounds the keys of a row at the window."""
    seen = WINDOW_PREFIX_TOKENS if gqa.window else PREFIX_TOKENS
    heads, reach = gqa.heads / ATTN_TP, 2 * PREFIX_TOKENS * REQUESTS / ROWS
    sizes = {"heads": heads, "requests": REQUESTS, "tokens": ROWS / REQUESTS, "reach": reach}
    asked = _problem(Kind.HEADS_PREFILL, gqa, precision, sizes)
    core = _core("gqa_prefill", Family.ATTENTION_PREFILL, gqa, precision, heads, ROWS * seen, KV_TOKENS, asked)
    return (*gemms(tensors, precision), _prepare(gqa), core)


def _prepare(gqa: GQA) -> Op:
    """Norm and rotation of queries and keys, and the write of keys and values: each value read and written once."""
    queries, pairs = ROWS * gqa.heads / ATTN_TP, ROWS * (2 * gqa.kv_heads) / KV_HEAD_RANKS
    return elementwise("gqa_prepare", (queries + pairs) * (2 * _BF16 * gqa.head_dim), program_launches=_PREPARED)


def _core(
    name: str,
    family: Family,
    gqa: GQA,
    precision: Precision,
    heads: Expr,
    keys: Expr,
    tokens: Expr,
    problem: Problem,
    room: Expr | None = None,
) -> Op:
    """Attention of `heads` query heads over `keys` (query, key) pairs: 2 x head_dim for scores, as many for values."""
    return Op(
        name,
        family=family,
        rate=Rate.BF16,
        flops=heads * keys * (4 * gqa.head_dim),
        bytes=tokens * gqa.kv_bytes(precision["kv"].name) + heads * ROWS * (2 * _BF16 * gqa.head_dim),
        problem=problem,
        program_flops=None if room is None else heads * room * (4 * gqa.head_dim),
        program_padding=ONE if room is None else ATTENTION_PADDING,
    )


def _problem(kind: Kind, gqa: GQA, precision: Precision, sizes: dict[str, Expr]) -> Problem:
    """The core as tables state it; the window bounds the context inside the kernel."""
    widths = {"kv_heads": gqa.kv_heads / KV_HEAD_RANKS, "width": gqa.head_dim * ONE, "window": gqa.window * ONE}
    return Problem(kind, precision["kv"].name, {**sizes, **widths})
