"""The indexer of sparse attention: score every cached token, keep the top k (its projections are plain GEMMs)."""

from hw.work import Family, Rate
from layouts.dsa.shape import Indexer
from layouts.op import Op
from layouts.symbols import INDEX_TOKENS, VERIFY
from layouts.tensor import Precision


def score(indexer: Indexer, precision: Precision) -> tuple[Op, ...]:
    """Scores of a decode step over the replicated index keys; nothing where the layer shares another's index."""
    if indexer.shared:
        return ()
    return (
        Op(
            "index_scores",
            family=Family.ATTENTION,
            rate=Rate.FP8,
            flops=INDEX_TOKENS * VERIFY * (2 * indexer.heads * indexer.head_dim),
            bytes=INDEX_TOKENS * indexer.key_bytes,
        ),
    )
