"""Shape of a mixture of experts: router, routed experts on the hidden or a latent width, shared expert."""

from dataclasses import dataclass, replace

from layouts.shapes import BF16, FP32, ShapeError, check_sizes, gated_mlp, vector
from layouts.symbols import (
    EXPERT_ROWS,
    EXPERT_TP,
    EXPERTS_RANK,
    MOE_ROWS,
    MOE_SHARD,
    SHARED_ROWS,
    SHARED_TP,
)
from layouts.tensor import Tensor


@dataclass(frozen=True)
class MoE:
    """Each token goes to `topk` of `experts` gated MLPs and through the shared one.

    `latent` is the width the experts act on (0: the hidden width), `shared_intermediate` the width of all shared
    experts held as one MLP (0: none). `bias`: router and experts have biases; `correction_bias`: the router's
    selection has an fp32 one.
    """

    hidden: int
    experts: int
    topk: int
    intermediate: int
    latent: int
    shared_intermediate: int
    bias: bool
    correction_bias: bool = False

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "experts": self.experts, "topk": self.topk, "intermediate": self.intermediate}
        check_sizes("MoE", sizes, {"latent": self.latent, "shared_intermediate": self.shared_intermediate})
        if self.topk > self.experts:
            raise ShapeError(f"MoE: topk = {self.topk} must not exceed experts = {self.experts}")

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        return "LatentMoE" if self.latent else "MoE"

    @property
    def width(self) -> int:
        """Width that the experts act on, and that dispatch sends."""
        return self.latent or self.hidden

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included."""
        return (vector("post_attention_norm", self.hidden, "experts"), *self._router(), *self._outer(), *self._routed())

    def _router(self) -> tuple[Tensor, ...]:
        return (
            Tensor("router", self.experts, self.hidden, "experts", MOE_ROWS, fixed=BF16),
            *((vector("router_bias", self.experts, "experts"),) if self.bias else ()),
            *((vector("correction_bias", self.experts, "experts", FP32),) if self.correction_bias else ()),
        )

    def _outer(self) -> tuple[Tensor, ...]:
        """What stands around the routed experts: latent projections and the shared expert."""
        latent = (
            Tensor("latent_down_proj", self.latent, self.hidden, "latent", MOE_ROWS, shard=MOE_SHARD),
            vector("latent_norm", self.latent, "latent"),
            Tensor("latent_up_proj", self.hidden, self.latent, "latent", MOE_ROWS, shard=MOE_SHARD),
        )
        shared = self.shared_intermediate
        return (
            *(latent if self.latent else ()),
            *(gated_mlp("shared_", self.hidden, shared, "shared", SHARED_ROWS, SHARED_TP, MOE_SHARD) if shared else ()),
        )

    def _routed(self) -> tuple[Tensor, ...]:
        w13 = Tensor("w13", 2 * self.intermediate, self.width, "experts", EXPERT_ROWS, EXPERT_TP, copies=EXPERTS_RANK)
        w2 = replace(w13, name="w2", out=self.width, inp=self.intermediate, cut_input=True)
        biases = (
            vector("w13_bias", 2 * self.intermediate, "experts", cut=EXPERT_TP, copies=EXPERTS_RANK),
            vector("w2_bias", self.width, "experts", copies=EXPERTS_RANK),
        )
        return (
            w13,
            w2,
            *(biases if self.bias else ()),
        )
