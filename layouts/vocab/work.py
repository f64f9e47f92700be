"""Embedding and lm_head, cut by vocabulary over `vocab_tp` ranks, and what follows a verified step."""

from hw.work import CollectiveKind
from layouts.op import Op, elementwise, exchange, gemm, passes
from layouts.symbols import ATTN_TP, LOGIT_ROWS, VOCAB_GROUPS, VOCAB_ROWS, VOCAB_TP
from layouts.tensor import Precision, Tensor

_BF16, _INT32 = 2, 4


def embed(hidden: int) -> tuple[Op, ...]:
    """Each rank looks up its part of the vocabulary for the rows of its vocabulary group, whose tokens it gathers; the
    parts are summed. SGLang 0.5.23 itself cuts the embedding over one attention group at most and gathers no tokens
    (layers/vocab_parallel_embedding.py: `get_embedding_tp_kwargs`); over several it is cut in builds that say so."""
    return (
        exchange("token_all_gather", CollectiveKind.ALL_GATHER, VOCAB_ROWS * _INT32, VOCAB_GROUPS, stride=ATTN_TP),
        # the program also works out angles of rotations, and where the pages of its requests lie
        elementwise("embed", VOCAB_ROWS * (2 * _BF16 * hidden), program_launches=4),
        exchange("embed_all_reduce", CollectiveKind.ALL_REDUCE, VOCAB_ROWS * (_BF16 * hidden), VOCAB_TP),
    )


def logits(head: Tensor, precision: Precision) -> tuple[Op, ...]:
    """Rows of the attention groups that share a vocabulary are gathered, multiplied, and their logits gathered."""
    vocab, hidden = head.out, head.inp
    turned = LOGIT_ROWS * (6 * _BF16 * vocab)
    return (
        exchange(
            "logits_row_gather", CollectiveKind.ALL_GATHER, LOGIT_ROWS * (_BF16 * hidden), VOCAB_GROUPS, stride=ATTN_TP
        ),
        gemm(head, precision),
        exchange("logits_all_gather", CollectiveKind.ALL_GATHER, LOGIT_ROWS * (_BF16 * vocab), VOCAB_TP),
        # the program takes the best of what it gathered in two kernels; what is padding is marked before, and what was
        # gathered turned around
        elementwise("sample", LOGIT_ROWS * (_BF16 * vocab), program_launches=2),
        passes("logits_turn", turned + turned * -1 / VOCAB_TP, 2),
    )
