"""Shape of gated delta rules, whose state replaces the KV cache: Kimi Delta Attention and Gated DeltaNet."""

from dataclasses import dataclass

from layouts.expression import ZERO, Expr
from layouts.shapes import BF16, FP32, ShapeError, check_sizes, vector
from layouts.symbols import ATTENTION_SHARD, ATTN_TP, ROWS
from layouts.tensor import FORMATS, Format, Tensor

_STATE_FORMATS = ("fp32", "bf16")


@dataclass(frozen=True)
class KDA:
    """`heads` states of head_dim x value_dim behind a causal convolution over q, k and v.

    The output gate is either one full-rank projection or, without `full_rank_gate`, a low-rank pair; so is the decay
    with and without `full_rank_decay`. With `head_gate`
    the decay is one number a head, projected with beta, and not one a channel: Gated DeltaNet, in which each of
    `key_heads` heads of queries and keys may serve several states. 0: as many key heads as states, as wide as keys.
    """

    hidden: int
    heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool
    head_gate: bool = False
    key_heads: int = 0
    value_dim: int = 0
    full_rank_decay: bool = False

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "heads": self.heads, "head_dim": self.head_dim}
        optional = {"key_heads": self.key_heads, "value_dim": self.value_dim}
        check_sizes(self.label, {**sizes, "conv_kernel": self.conv_kernel}, optional)
        if optional != {"key_heads": 0, "value_dim": 0} and not self.head_gate:
            raise ShapeError("KDA: key heads and value widths of their own go with one decay a head (GDN)")
        if self.heads % self.keys:
            raise ShapeError(f"GDN: value heads = {self.heads} must be a multiple of key heads = {self.keys}")

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        return "GDN" if self.head_gate else "KDA"

    @property
    def keys(self) -> int:
        """Heads of queries and keys."""
        return self.key_heads or self.heads

    @property
    def width(self) -> int:
        """Values of all heads together: heads x value width."""
        return self.heads * (self.value_dim or self.head_dim)

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.keys * self.head_dim + self.width

    @property
    def state_values(self) -> int:
        """Values of the recurrent state."""
        return self.width * self.head_dim

    def kv_bytes(self, format_name: str) -> Expr:
        """None: the cache of a KDA layer does not grow with the context."""
        return ZERO

    def state_bytes(self, verify: Expr | int, format_name: str = "fp32") -> Expr:
        """Bytes of one slot in one layer on one rank: the recurrent state and 1 + verify windows of the convolution.

        A window holds the conv_kernel - 1 inputs of q, k and v before a token, in bf16; one is kept for every verified
        token so that a rejected draft can be undone.
        """
        if format_name not in _STATE_FORMATS:
            raise ShapeError(f"{self.label}: no state in {format_name!r}; choose one of {', '.join(_STATE_FORMATS)}")
        recurrent = FORMATS[format_name].payload * self.state_values
        window = 2 * (self.conv_kernel - 1) * self.conv_width
        return ((1 + Expr.of(verify)) * window + recurrent) / ATTN_TP

    def replay_bytes(self, ring: int) -> Expr:
        """Bytes of one ReplaySSM slot in one layer on one rank: the last `ring` tokens from which a state is rebuilt.

        Four bf16 vectors and one fp32 decay vector a head and token, and one fp32 scalar. With one decay a head: two
        bf16 vectors a state and two a key head, and the fp32 decay (SGLang 0.5.23 `replayssm_ring_bytes_per_req`).
        """
        check_sizes(self.label, {}, {"ring": ring})
        if self.head_gate:
            return Expr.of(ring * (4 * self.width + 4 * self.keys * self.head_dim + 4 * self.heads)) / ATTN_TP
        return Expr.of(ring * (4 * 2 * self.width + 4 * self.width + 4 * self.heads)) / ATTN_TP

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included."""
        return (
            vector("input_norm", self.hidden, "attention"),
            *(self._by_head() if self.head_gate else self._by_channel()),
            Tensor(
                "o_proj", self.hidden, self.width, "attention", ROWS, ATTN_TP, shard=ATTENTION_SHARD, cut_input=True
            ),
            vector("conv1d", self.conv_width * self.conv_kernel, "attention", cut=ATTN_TP),
            vector("A_log", self.heads, "attention", FP32, ATTN_TP),
            vector("dt_bias", self.heads if self.head_gate else self.width, "attention", FP32, ATTN_TP),
            vector("o_norm", self.value_dim or self.head_dim, "attention"),
        )

    def _by_channel(self) -> tuple[Tensor, ...]:
        return (
            self._projection("qkv_proj", self.conv_width, self.hidden),
            *self._gate(),
            *self._decay(),
            Tensor("b_proj", self.heads, self.hidden, "attention", ROWS, ATTN_TP, fixed=BF16),
        )

    def _decay(self) -> tuple[Tensor, ...]:
        if self.full_rank_decay:
            return (self._projection("f_proj", self.width, self.hidden),)
        return (
            Tensor("f_a_proj", self.head_dim, self.hidden, "attention", ROWS, fixed=BF16),
            self._projection("f_b_proj", self.width, self.head_dim, BF16),
        )

    def _by_head(self) -> tuple[Tensor, ...]:
        """Queries, keys, values and output gate in one product; beta and decay in another (SGLang 0.5.23)."""
        return (
            self._projection("qkvz_proj", self.conv_width + self.width, self.hidden),
            Tensor("ba_proj", 2 * self.heads, self.hidden, "attention", ROWS, ATTN_TP, fixed=BF16),
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
