"""One decoder layer: attention and what follows it, as shapes."""

from dataclasses import dataclass

from layouts.csa import CSA
from layouts.dense import Dense
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.models.errors import ModelError
from layouts.moe import MoE
from layouts.residual.shape import AttentionResidual
from layouts.tensor import Tensor

Programmed = MLA | KDA | GQA
Attention = Programmed | CSA
Ffn = Dense | MoE


def programmed(attention: Attention) -> Programmed:
    """An attention that has a program; raises ModelError for one that can only be priced."""
    if isinstance(attention, CSA):
        raise ModelError(f"attention {attention.label} has no program; it can be priced: plan, cost, memory, check")
    return attention


@dataclass(frozen=True)
class Layer:
    """An attention and a feed-forward shape of one hidden width. Equal layers are one kind. `residual`: what they read
    is a mixture of the stream and earlier states of it."""

    attention: Attention
    ffn: Ffn
    residual: AttentionResidual | None = None

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.attention.hidden

    @property
    def label(self) -> str:
        """`KDA + LatentMoE`."""
        return f"{self.attention.label} + {self.ffn.label}"

    @property
    def experts(self) -> int:
        """Routed experts; 0 in a dense layer."""
        return self.ffn.experts if isinstance(self.ffn, MoE) else 0

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight once; names are unique within the layer."""
        mixing = () if self.residual is None else self.residual.layer_tensors()
        return self.attention.tensors() + self.ffn.tensors() + mixing

    @property
    def parameters(self) -> int:
        """Of one whole copy, all experts included."""
        values = {"experts_rank": self.experts}
        return sum(int(t.parameters * t.copies.evaluate(values)) for t in self.tensors())
