"""Shape of compressed attention (DeepSeek-V4): one KV head over a window and over rows that stand for several tokens.

Tensors, formats and rows as SGLang 0.5.23 (`models/deepseek_v4.py`, `layers/attention/dsv4`) and vLLM 0.33.0
(`models/deepseek_v4`) hold them.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from layouts.expression import ZERO, Expr
from layouts.shapes import BF16, FP32, ShapeError, check_kv_format, check_sizes, vector
from layouts.symbols import ATTENTION_SHARD, ATTN_TP, ROWS
from layouts.tensor import Tensor

_INDEXED = 4  # the ratio whose rows overlap and are chosen by an index; rows of larger ratios are all read
_SCALE_BLOCK, _SCALES = 64, 8  # fp8 rows: one E8M0 byte for each 64 values, in whole groups of eight bytes
_INDEX_BLOCK = 128  # index keys are fp8 with one fp32 scale for each 128 values
_FP32 = 4


@dataclass(frozen=True)
class CSA:
    """`heads` query heads over one head that is key and value; the last `window` tokens are seen as they are.

    `ratio`: tokens that one compressed row stands for (0: the layer has only its window). At a ratio of 4 rows overlap
    and `index_heads` x `index_dim` choose the best `topk` of them; at larger ratios every row is read. The output goes
    through `groups` low-rank products of `o_lora` each. Before and after attention and feed-forward the `streams`
    copies of the residual stream are mixed (manifold-constrained hyper-connections).
    """

    hidden: int
    heads: int
    head_dim: int
    rope: int
    q_lora: int
    groups: int
    o_lora: int
    window: int
    streams: int
    ratio: int = 0
    index_heads: int = 0
    index_dim: int = 0
    topk: int = 0

    def __post_init__(self) -> None:
        sizes = {n: getattr(self, n) for n in ("hidden", "heads", "head_dim", "rope", "q_lora", "groups", "o_lora")}
        indexes = {n: getattr(self, n) for n in ("index_heads", "index_dim", "topk")}
        check_sizes("CSA", {**sizes, "window": self.window, "streams": self.streams}, {"ratio": self.ratio, **indexes})
        if self.heads % self.groups:
            raise ShapeError(f"CSA: heads = {self.heads} must be a multiple of groups = {self.groups}")
        if self.rope >= self.head_dim:
            raise ShapeError(f"CSA: rope = {self.rope} must be below head_dim = {self.head_dim}")
        if any(indexes.values()) != self.indexed or all(indexes.values()) != self.indexed:
            raise ShapeError(f"CSA: an index goes with a ratio of {_INDEXED}, and with no other: got {self.ratio}")

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        if not self.ratio:
            return "MQA window"
        return "CSA" if self.indexed else "HCA"

    @property
    def indexed(self) -> bool:
        """Whether an index chooses among the compressed rows."""
        return self.ratio == _INDEXED

    @property
    def row_tokens(self) -> int:
        """Tokens that go into one row: twice the ratio where rows overlap."""
        return self.ratio * self._halves

    @property
    def reach(self) -> int:
        """Tokens whose rows the index keeps; 0 without one."""
        return self.ratio * self.topk

    @property
    def _halves(self) -> int:
        return 2 if self.indexed else 1

    def row_bytes(self, format_name: str) -> int:
        """Bytes of one row, of the window or compressed, the same on every rank.

        fp8: the part without position in fp8 with its scales, the rotary part in bf16 (584 at 448 + 64). fp8_raw: a
        byte a value, as SGLang's `trtllm` backend keeps it. Pages may pad rows by a byte more.
        """
        check_kv_format("CSA", format_name)
        if format_name == "bf16":
            return 2 * self.head_dim
        if format_name == "fp8_raw":
            return self.head_dim
        plain = self.head_dim - self.rope
        return plain + 2 * self.rope + _SCALES * ceil(plain / (_SCALE_BLOCK * _SCALES))

    def kv_bytes(self, format_name: str) -> Expr:
        """Bytes a token of compressed rows, in one layer of one rank before DCP; the index and the window are apart."""
        row = self.row_bytes(format_name)
        return Expr.of(Fraction(row, self.ratio)) if self.ratio else ZERO

    @property
    def index_bytes(self) -> int:
        """Bytes of one index key, one for each compressed row (132 at 128 values); 0 without an index."""
        return self.index_dim + _FP32 * ceil(self.index_dim / _INDEX_BLOCK)

    @property
    def state_bytes(self) -> int:
        """Bytes that a request keeps of tokens which make no whole row yet: fp32 value and score of each of them, and
        of the index's. With a draft SGLang keeps twice as many rows, so that rejected tokens can be undone."""
        return self.row_tokens * 2 * self._halves * (self.head_dim + self.index_dim) * _FP32

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it and the mixing of both its halves included."""
        width = self.heads * self.head_dim
        narrow = self.groups * self.o_lora
        return (
            vector("input_norm", self.hidden, "attention"),
            Tensor("qkv_a_proj", self.q_lora + self.head_dim, self.hidden, "attention", ROWS),
            vector("q_a_norm", self.q_lora, "attention"),
            vector("kv_norm", self.head_dim, "attention"),
            Tensor("q_b_proj", width, self.q_lora, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD),
            vector("sinks", self.heads, "attention", FP32),
            Tensor("o_a_proj", narrow, width // self.groups, "attention", ROWS, ATTN_TP, heads=self.groups),
            Tensor("o_b_proj", self.hidden, narrow, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, cut_input=True),
            *(self._compressor("", self.head_dim) if self.ratio else ()),
            *(self._index() if self.indexed else ()),
            *self._mixing("attention"),
            *self._mixing("ffn"),
        )

    def _compressor(self, prefix: str, width: int) -> tuple[Tensor, ...]:
        """Value and score of each token, what its place in a row adds to the score, and the norm of a row."""
        values = self._halves * width
        return (
            Tensor(f"{prefix}compress_proj", 2 * values, self.hidden, "attention", ROWS, fixed=BF16),
            vector(f"{prefix}compress_place", self.ratio * values, "attention", FP32),
            vector(f"{prefix}compress_norm", width, "attention"),
        )

    def _index(self) -> tuple[Tensor, ...]:
        """Every rank computes all index heads, so nothing is cut."""
        return (
            Tensor("index_q_b_proj", self.index_heads * self.index_dim, self.q_lora, "attention", ROWS),
            Tensor("index_weights_proj", self.index_heads, self.hidden, "attention", ROWS, fixed=BF16),
            *self._compressor("index_", self.index_dim),
        )

    def _mixing(self, half: str) -> tuple[Tensor, ...]:
        """What the streams make of themselves: weights to read, to write and to mix them, in fp32."""
        weights = (2 + self.streams) * self.streams
        return (
            Tensor(f"{half}_mix_proj", weights, self.streams * self.hidden, "attention", ROWS, fixed=FP32),
            vector(f"{half}_mix", weights + 3, "attention", FP32),
        )
