"""The indexer of sparse attention: score every token, keep the top k (its projections are plain GEMMs)."""

from hw.work import Family, Rate
from layouts.dsa.shape import Indexer
from layouts.expression import Expr
from layouts.op import Op
from layouts.symbols import INDEX_TABLE_TOKENS, INDEX_TOKENS, KV_TOKENS, PREFIX_TOKENS, ROWS, VERIFY


def decode_scores(indexer: Indexer) -> tuple[Op, ...]:
    """Scores of a decode step over the replicated index keys."""
    return _scores(Family.INDEX, indexer, INDEX_TOKENS * VERIFY, INDEX_TOKENS, INDEX_TABLE_TOKENS * VERIFY)


def prefill_scores(indexer: Indexer) -> tuple[Op, ...]:
    """Scores of a prefill chunk: each of its rows against the keys before it."""
    return _scores(Family.INDEX_PREFILL, indexer, ROWS * PREFIX_TOKENS, KV_TOKENS)


def _scores(family: Family, indexer: Indexer, pairs: Expr, keys: Expr, room: Expr | None = None) -> tuple[Op, ...]:
    """All index heads of `pairs` of (row, key); nothing where the layer shares another's index."""
    if indexer.shared:
        return ()
    return (
        Op(
            "index_scores",
            family=family,
            rate=Rate.FP8,
            flops=pairs * (2 * indexer.heads * indexer.head_dim),
            bytes=keys * indexer.key_bytes,
            program_flops=None if room is None else room * (2 * indexer.heads * indexer.head_dim),
        ),
    )
