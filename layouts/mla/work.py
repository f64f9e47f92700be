"""Multi-head latent attention: absorbed decode over the shared latent cache, and prefill with expanded heads."""

from collections.abc import Sequence

from hw.tables import Kind
from hw.work import Family, Rate
from layouts.combine.work import combine
from layouts.dsa.work import decode_scores, prefill_scores
from layouts.expression import ONE, Expr
from layouts.mla.shape import MLA
from layouts.op import Op, Problem, elementwise, gemms, passes
from layouts.symbols import (
    ATTENTION_BLOCKS,
    ATTENTION_CTAS,
    ATTENTION_CUT,
    ATTENTION_PADDING,
    ATTENTION_PARTS,
    ATTENTION_SPLITS,
    ATTN_TP,
    BATCH,
    CHOSEN_TOKENS,
    DCP,
    KV_TOKENS,
    PREFIX_TOKENS,
    REQUESTS,
    ROWS,
    SPARSE_PREFIX_TOKENS,
    SPARSE_TOKENS,
    TABLE_TOKENS,
    VERIFY,
)
from layouts.tensor import Precision, Tensor

_BF16, _FP32, _INT32 = 2, 4, 4
_PREPARED = 4  # kernels of the program: two norms, a latent written, queries joined; rotations are in the last two


def decode(mla: MLA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step, without the residual around them."""
    projections = gemms(tensors, precision)
    index = decode_scores(mla.indexer) if mla.indexer else ()
    exchanges = combine(mla.heads, mla.kv_values, mla.kv_lora, True)
    merged = () if mla.indexer else (_merge(mla),)
    return (*projections, _prepare(mla), *index, _attention(mla, precision), *merged, *exchanges)


def prefill(mla: MLA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk: every row attends to the keys before it in expanded heads, or to the latents of those
    that the index keeps."""
    index = prefill_scores(mla.indexer) if mla.indexer else ()
    width = mla.kv_values + mla.kv_lora if mla.indexer else mla.nope + mla.rope + mla.v
    keys = SPARSE_PREFIX_TOKENS if mla.indexer else PREFIX_TOKENS
    core = Op(
        "mla_prefill",
        family=Family.ATTENTION_PREFILL,
        rate=Rate.BF16,
        flops=ROWS * keys * (2 * mla.heads * width) / ATTN_TP,
        bytes=KV_TOKENS * mla.kv_bytes(precision["kv"].name) + ROWS * (2 * _BF16 * mla.heads * width) / ATTN_TP,
        problem=None if mla.indexer else _prompt(mla, precision),
    )
    return (*gemms(tensors, precision), _prepare(mla), *index, core)


def _prepare(mla: MLA) -> Op:
    """Norms, rotation, packing of absorbed queries for the kernel, write of the latent (article 000, mla_prepare)."""
    heads = DCP * mla.heads / ATTN_TP
    moved = ROWS * heads * (2 * _BF16 * mla.kv_values) + ROWS * (2 * _BF16 * mla.kv_values)
    return elementwise("mla_prepare", moved, program_launches=_PREPARED)


def _attention(mla: MLA, precision: Precision) -> Op:
    """All heads of the DCP group over this rank's tokens: 2 x (latent + rope) for scores, 2 x latent for values."""
    tokens = SPARSE_TOKENS if mla.indexer else KV_TOKENS
    heads = DCP * mla.heads / ATTN_TP
    # a rank may hold all that a row chooses, so the program has room for that many on each
    pairs = BATCH * VERIFY * CHOSEN_TOKENS if mla.indexer else TABLE_TOKENS * VERIFY
    shares = {"ctas": ATTENTION_BLOCKS, "splits": ATTENTION_PARTS, "copied": ATTENTION_CUT * _outputs(mla)}
    return Op(
        "mla_decode",
        family=Family.ATTENTION_SPARSE if mla.indexer else Family.ATTENTION,
        rate=Rate(precision["kv"].rate),
        flops=tokens * VERIFY * heads * (2 * (mla.kv_values + mla.kv_lora)),
        bytes=tokens * mla.kv_bytes(precision["kv"].name) + ROWS * heads * (_BF16 * (mla.kv_values + mla.kv_lora)),
        shape={"ctas": ATTENTION_CTAS, "splits": ATTENTION_SPLITS},
        problem=None if mla.indexer else _context(mla, precision, heads),
        program_flops=pairs * heads * (2 * (mla.kv_values + mla.kv_lora)),
        program_padding=ONE if mla.indexer else ATTENTION_PADDING,
        program_shape={} if mla.indexer else shares,
    )


def _merge(mla: MLA) -> Op:
    """The program's schedule of a batch, one kernel, and its merge of float32 pieces of requests that were cut; what
    this takes beside their bytes is `copied` in the attention's shape. An engine's time of attention includes both."""
    pieces = ATTENTION_PARTS * _outputs(mla) * (2 * _FP32)  # written by the attention, and read
    return passes("attention_merge", BATCH * _INT32 + pieces, 2)


def _outputs(mla: MLA) -> Expr:
    """Values of all heads of the DCP group before they are combined."""
    return ROWS * DCP * (mla.heads * mla.kv_lora) / ATTN_TP


def _context(mla: MLA, precision: Precision, heads: Expr) -> Problem:
    """A decode step, as tables state it: heads over so many tokens of each request."""
    sizes = {"heads": heads, "requests": REQUESTS, "tokens": KV_TOKENS / REQUESTS, "verify": VERIFY}
    return Problem(Kind.MLA_DECODE, precision["kv"].name, {**sizes, **_widths(mla)})


def _prompt(mla: MLA, precision: Precision) -> Problem:
    """A chunk of prompts, as tables state it; see `hw.tables.forms` for `reach`."""
    sizes = {"heads": mla.heads / ATTN_TP, "requests": REQUESTS, "tokens": ROWS / REQUESTS}
    widths = {**_widths(mla), "nope": mla.nope * ONE, "value": mla.v * ONE}
    reach = 2 * PREFIX_TOKENS * REQUESTS / ROWS
    return Problem(Kind.MLA_PREFILL, precision["kv"].name, {**sizes, **widths, "reach": reach})


def _widths(mla: MLA) -> dict[str, Expr]:
    return {"latent": mla.kv_lora * ONE, "rope": mla.rope * ONE}
