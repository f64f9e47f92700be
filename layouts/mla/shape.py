"""Shape of multi-head latent attention, as engines serve it: kv_b absorbed into w_kc and w_vc."""

from dataclasses import dataclass

from layouts.dsa.shape import Indexer
from layouts.expression import Expr
from layouts.shapes import BF16, check_kv_format, check_sizes, vector
from layouts.symbols import ATTENTION_SHARD, ATTN_TP, QUERY_TP, ROWS
from layouts.tensor import Tensor

_SCALE_BLOCK = 128  # the scaled fp8 KV layout of sparse attention: one fp32 scale for each 128 latent values


@dataclass(frozen=True)
class MLA:
    """Heads of nope + rope query and key width and of v value width over one latent of kv_lora + rope a token.

    `q_lora` = 0 means a full-rank query. With an `indexer` the layer is sparse (DSA).
    """

    hidden: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v: int
    output_gate: bool
    indexer: Indexer | None

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "heads": self.heads, "kv_lora": self.kv_lora, "nope": self.nope, "v": self.v}
        check_sizes("MLA", sizes, {"q_lora": self.q_lora, "rope": self.rope})

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        if self.indexer is None:
            return "MLA"
        return "DSA shared" if self.indexer.shared else "DSA"

    @property
    def kv_values(self) -> int:
        """Values that the cache keeps for a token: latent and rotary key."""
        return self.kv_lora + self.rope

    def kv_bytes(self, format_name: str) -> Expr:
        """Bytes of KV a token and layer on one rank, before DCP; the index key is apart (`Indexer.key_bytes`).

        bf16: 2 a value. fp8: 1 a value; with an indexer the latent in fp8 with its scales and the rotary part in bf16
        (576 and 656 at 512 + 64), as SGLang 0.5.23 `calculate_mla_kv_cache_dim` and vLLM's `fp8_ds_mla` keep it.
        fp8_raw: 1 a value always, as under SGLang's `trtllm` and `tilelang` backends of sparse attention. The latent
        has no heads, so no attention TP divides it.
        """
        check_kv_format("MLA", format_name)
        if format_name == "bf16":
            return Expr.of(2 * self.kv_values)
        if self.indexer is None or format_name == "fp8_raw":
            return Expr.of(self.kv_values)
        return Expr.of(self.kv_lora + 4 * -(-self.kv_lora // _SCALE_BLOCK) + 2 * self.rope)

    @property
    def kv_b(self) -> Tensor:
        """kv_b_proj as the checkpoint holds it: w_kc and w_vc are made of it."""
        return Tensor("kv_b_proj", self.heads * (self.nope + self.v), self.kv_lora, "attention", None, ATTN_TP)

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included."""
        value_width = self.heads * self.v
        gate = (self._projection("gate_proj", value_width, self.hidden),) if self.output_gate else ()
        return (
            vector("input_norm", self.hidden, "attention"),
            *self._query_and_latent(),
            vector("kv_a_norm", self.kv_lora, "attention"),
            self._absorbed("w_kc", self.kv_lora, self.nope, QUERY_TP),
            self._absorbed("w_vc", self.v, self.kv_lora),
            *gate,
            Tensor(
                "o_proj", self.hidden, value_width, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, cut_input=True
            ),
            *(self.indexer.tensors() if self.indexer is not None else ()),
        )

    def _query_and_latent(self) -> tuple[Tensor, ...]:
        query_width = self.heads * (self.nope + self.rope)
        if self.q_lora == 0:
            return (
                Tensor("kv_a_proj", self.kv_values, self.hidden, "attention", ROWS),
                self._projection("q_proj", query_width, self.hidden, QUERY_TP),
            )
        return (
            Tensor("fused_qkv_a_proj", self.q_lora + self.kv_values, self.hidden, "attention", ROWS),
            vector("q_a_norm", self.q_lora, "attention"),
            self._projection("q_b_proj", query_width, self.q_lora, QUERY_TP),
        )

    def _absorbed(self, name: str, out: int, inp: int, work_cut: Expr | None = None) -> Tensor:
        """A half of kv_b, one (out, inp) product a head."""
        rows, heads = ROWS, self.heads
        return Tensor(name, heads * out, inp, "attention", rows, ATTN_TP, work_cut=work_cut, fixed=BF16, heads=heads)

    @staticmethod
    def _projection(name: str, out: int, inp: int, work_cut: Expr | None = None) -> Tensor:
        return Tensor(name, out, inp, "attention", ROWS, ATTN_TP, work_cut=work_cut, shard=ATTENTION_SHARD)
