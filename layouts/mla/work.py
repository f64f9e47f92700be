"""Multi-head latent attention: absorbed decode over the shared latent cache, and prefill with expanded heads."""

from collections.abc import Sequence

from hw.work import Family, Rate
from layouts.combine.work import combine
from layouts.dsa.work import score
from layouts.mla.shape import MLA
from layouts.op import Op, gemms
from layouts.symbols import ATTENTION_CTAS, ATTN_TP, DCP, KV_TOKENS, PREFIX_TOKENS, ROWS, SPARSE_TOKENS, VERIFY
from layouts.tensor import Precision, Tensor

_BF16 = 2


def decode(mla: MLA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step, without the residual around them."""
    projections = gemms(tensors, precision)
    index = score(mla.indexer, precision) if mla.indexer else ()
    return (*projections, *index, _attention(mla, precision), *combine(mla.heads, mla.kv_values, mla.kv_lora))


def prefill(mla: MLA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk: every row attends to `prefix_tokens` keys in expanded heads."""
    width = mla.nope + mla.rope + mla.v
    core = Op(
        "mla_prefill",
        family=Family.ATTENTION,
        rate=Rate.BF16,
        flops=ROWS * PREFIX_TOKENS * (2 * mla.heads * width) / ATTN_TP,
        bytes=KV_TOKENS * mla.kv_bytes(precision["kv"].name) + ROWS * (2 * _BF16 * mla.heads * width) / ATTN_TP,
    )
    return (*gemms(tensors, precision), core)


def _attention(mla: MLA, precision: Precision) -> Op:
    """All heads of the DCP group over this rank's tokens: 2 x (latent + rope) for scores, 2 x latent for values."""
    tokens = SPARSE_TOKENS if mla.indexer else KV_TOKENS
    heads = DCP * mla.heads / ATTN_TP
    return Op(
        "mla_decode",
        family=Family.ATTENTION,
        rate=Rate(precision["kv"].rate),
        flops=tokens * VERIFY * heads * (2 * (mla.kv_values + mla.kv_lora)),
        bytes=tokens * mla.kv_bytes(precision["kv"].name) + ROWS * heads * (_BF16 * (mla.kv_values + mla.kv_lora)),
        ctas=ATTENTION_CTAS,
    )
