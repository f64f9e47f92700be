"""Shape of Kimi Delta Attention: a gated delta rule whose state replaces the KV cache."""

from dataclasses import dataclass

from layouts.expression import ZERO, Expr
from layouts.shapes import BF16, FP32, ShapeError, check_sizes, vector
from layouts.symbols import ATTENTION_SHARD, ATTN_TP, ROWS
from layouts.tensor import FORMATS, Format, Tensor

_STATE_FORMATS = ("fp32", "bf16")


@dataclass(frozen=True)
class KDA:
    """`heads` states of head_dim x head_dim behind a causal convolution over q, k and v.

    The output gate is either one full-rank projection or, without `full_rank_gate`, a low-rank pair.
    """

    hidden: int
    heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "heads": self.heads, "head_dim": self.head_dim}
        check_sizes("KDA", {**sizes, "conv_kernel": self.conv_kernel})

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        return "KDA"

    @property
    def width(self) -> int:
        """heads x head_dim."""
        return self.heads * self.head_dim

    def kv_bytes(self, format_name: str) -> Expr:
        """None: the cache of a KDA layer does not grow with the context."""
        return ZERO

    def state_bytes(self, verify: Expr | int, format_name: str = "fp32") -> Expr:
        """Bytes of one slot in one layer on one rank: the recurrent state and 1 + verify windows of the convolution.

        A window holds the conv_kernel - 1 inputs of q, k and v before a token, in bf16; one is kept for every verified
        token so that a rejected draft can be undone.
        """
        if format_name not in _STATE_FORMATS:
            raise ShapeError(f"KDA: no state in {format_name!r}; choose one of {', '.join(_STATE_FORMATS)}")
        recurrent = FORMATS[format_name].payload * self.width * self.head_dim
        window = 2 * (self.conv_kernel - 1) * 3 * self.width
        return ((1 + Expr.of(verify)) * window + recurrent) / ATTN_TP

    def replay_bytes(self, ring: int) -> Expr:
        """Bytes of one ReplaySSM slot in one layer on one rank: the last `ring` tokens from which a state is rebuilt.

        Four bf16 vectors and one fp32 decay vector a head and token, and one fp32 scalar.
        """
        check_sizes("KDA", {}, {"ring": ring})
        return Expr.of(ring * (4 * 2 * self.width + 4 * self.width + 4 * self.heads)) / ATTN_TP

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included."""
        return (
            vector("input_norm", self.hidden, "attention"),
            self._projection("qkv_proj", 3 * self.width, self.hidden),
            *self._gate(),
            Tensor("f_a_proj", self.head_dim, self.hidden, "attention", ROWS, fixed=BF16),
            self._projection("f_b_proj", self.width, self.head_dim, BF16),
            Tensor("b_proj", self.heads, self.hidden, "attention", ROWS, ATTN_TP, fixed=BF16),
            Tensor(
                "o_proj", self.hidden, self.width, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, cut_input=True
            ),
            vector("conv1d", 3 * self.width * self.conv_kernel, "attention", cut=ATTN_TP),
            vector("A_log", self.heads, "attention", FP32, ATTN_TP),
            vector("dt_bias", self.width, "attention", FP32, ATTN_TP),
            vector("o_norm", self.head_dim, "attention"),
        )

    def _gate(self) -> tuple[Tensor, ...]:
        if self.full_rank_gate:
            return (self._projection("g_proj", self.width, self.hidden),)
        return (
            Tensor("g_a_proj", self.head_dim, self.hidden, "attention", ROWS),
            self._projection("g_b_proj", self.width, self.head_dim),
        )

    @staticmethod
    def _projection(name: str, out: int, inp: int, fixed: Format | None = None) -> Tensor:
        return Tensor(name, out, inp, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, fixed=fixed)
