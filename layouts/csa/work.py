"""Compressed attention: rows of the window and of the compressed context under one softmax; index; mixed streams."""

from collections.abc import Sequence

from hw.work import Family, Rate
from layouts.combine.work import combine
from layouts.csa.shape import CSA
from layouts.expression import ZERO, Expr
from layouts.op import Op, elementwise, gemms
from layouts.symbols import (
    ATTN_TP,
    DCP,
    INDEX_TOKENS,
    KV_TOKENS,
    PREFIX_TOKENS,
    ROWS,
    SPARSE_PREFIX_TOKENS,
    SPARSE_TOKENS,
    VERIFY,
    WINDOW_PREFIX_TOKENS,
    WINDOW_TOKENS,
)
from layouts.tensor import Precision, Tensor

_BF16 = 2
_MIXES = 2  # before attention and before the feed-forward part


def decode(csa: CSA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step. Windows are whole on every DCP rank, compressed rows are shared."""
    heads = DCP * csa.heads / ATTN_TP
    rows = WINDOW_TOKENS * DCP + _compressed(csa, SPARSE_TOKENS, KV_TOKENS)
    index = _scores(Family.INDEX, csa, INDEX_TOKENS * VERIFY, INDEX_TOKENS)
    core = _core("csa_decode", Family.ATTENTION_SPARSE, csa, precision, heads, rows * VERIFY, rows)
    exchanges = combine(csa.heads, csa.head_dim, csa.head_dim, False)
    return (*gemms(tensors, precision), *_around(csa, precision), *index, core, *exchanges)


def prefill(csa: CSA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk: each row sees its window and the compressed rows before it."""
    seen = WINDOW_PREFIX_TOKENS + _compressed(csa, SPARSE_PREFIX_TOKENS, PREFIX_TOKENS)
    # a chunk writes and reads its own window rows, and the compressed rows of all that came before it
    read = ROWS + (KV_TOKENS / csa.ratio if csa.ratio else ZERO)
    index = _scores(Family.INDEX_PREFILL, csa, ROWS * PREFIX_TOKENS, KV_TOKENS)
    heads = csa.heads / ATTN_TP
    core = _core("csa_prefill", Family.ATTENTION_PREFILL, csa, precision, heads, ROWS * seen, read)
    return (*gemms(tensors, precision), *_around(csa, precision), *index, core)


def _compressed(csa: CSA, chosen: Expr, every: Expr) -> Expr:
    """Compressed rows of those tokens that the index keeps, of all of them without one."""
    return (chosen if csa.indexed else every) / csa.ratio if csa.ratio else ZERO


def _scores(family: Family, csa: CSA, pairs: Expr, tokens: Expr) -> tuple[Op, ...]:
    """All index heads of every row against the index keys, one for each compressed row."""
    if not csa.indexed:
        return ()
    flops = pairs * (2 * csa.index_heads * csa.index_dim) / csa.ratio
    return (Op("index_scores", family=family, rate=Rate.FP8, flops=flops, bytes=tokens * csa.index_bytes / csa.ratio),)


def _core(name: str, family: Family, csa: CSA, precision: Precision, heads: Expr, pairs: Expr, rows: Expr) -> Op:
    """`heads` over `pairs` of (query, row): 2 x head_dim for scores and as many for values, which the rows are too."""
    return Op(
        name,
        family=family,
        rate=Rate.BF16,
        flops=heads * pairs * (4 * csa.head_dim),
        bytes=rows * csa.row_bytes(precision["kv"].name) + heads * ROWS * (2 * _BF16 * csa.head_dim),
    )


def _around(csa: CSA, precision: Precision) -> tuple[Op, ...]:
    """Norms, rotation and the write of the window's row; what tokens leave for the next compressed row; the mixing:
    the streams are read to make one input, and read and written to take one output in, twice a layer."""
    queries = ROWS * (2 * _BF16 * csa.heads * csa.head_dim) / ATTN_TP
    written = csa.row_bytes(precision["kv"].name) + (csa.state_bytes // csa.row_tokens if csa.ratio else 0)
    return (
        elementwise("csa_prepare", queries + ROWS * (_BF16 * csa.head_dim + written)),
        elementwise("stream_mix", ROWS * (_MIXES * 3 * _BF16 * csa.streams * csa.hidden)),
    )
