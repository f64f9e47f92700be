"""Shape of grouped-query attention, full or within a sliding window."""

from dataclasses import dataclass

from layouts.expression import Expr
from layouts.shapes import ShapeError, check_kv_format, check_sizes, vector
from layouts.symbols import ATTENTION_SHARD, ATTN_TP, KV_HEAD_RANKS, ROWS
from layouts.tensor import FORMATS, Tensor


@dataclass(frozen=True)
class GQA:
    """`heads` query heads over `kv_heads` key and value heads; `window` tokens are seen (0: all of them).

    `sinks` is one learnt logit a head (gpt-oss). With an `output_gate` the query projection also gives a gate as wide
    (Qwen3-Next).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    bias: bool
    qk_norm: bool
    sinks: bool = False
    output_gate: bool = False

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        check_sizes("GQA", sizes, {"window": self.window})
        if self.heads % self.kv_heads:
            raise ShapeError(f"GQA: heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        return "GQA window" if self.window else "GQA"

    def kv_bytes(self, format_name: str) -> Expr:
        """Bytes of keys and values a token and layer on one rank, before DCP; KV heads beyond attn_tp are copied."""
        check_kv_format("GQA", format_name)
        return Expr.of(FORMATS[format_name].payload * 2 * self.kv_heads * self.head_dim) / KV_HEAD_RANKS

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included. q and kv are apart because their cuts differ."""
        query, pair = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        asked = query * (1 + self.output_gate)
        biases = (
            vector("q_bias", query, "attention", cut=ATTN_TP),
            vector("kv_bias", pair, "attention", cut=KV_HEAD_RANKS),
            vector("o_bias", self.hidden, "attention"),
        )
        return (
            vector("input_norm", self.hidden, "attention"),
            Tensor("q_proj", asked, self.hidden, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD),
            Tensor("kv_proj", pair, self.hidden, "attention", ROWS, KV_HEAD_RANKS, shard=ATTENTION_SHARD),
            Tensor("o_proj", self.hidden, query, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, cut_input=True),
            *(biases if self.bias else ()),
            *((vector("qk_norm", 2 * self.head_dim, "attention"),) if self.qk_norm else ()),
            *((vector("sinks", self.heads, "attention", cut=ATTN_TP),) if self.sinks else ()),
        )
