"""Shape of the dense MLP."""

from dataclasses import dataclass

from layouts.shapes import check_sizes, gated_mlp, vector
from layouts.symbols import DENSE_ROWS, DENSE_TP
from layouts.tensor import Component, Tensor


@dataclass(frozen=True)
class Dense:
    """A gated MLP that every token passes."""

    hidden: int
    intermediate: int
    component: Component = "dense"

    def __post_init__(self) -> None:
        check_sizes("dense MLP", {"hidden": self.hidden, "intermediate": self.intermediate})

    @property
    def label(self) -> str:
        """Name of the kind in reports."""
        return "dense"

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of one layer, the norm before it included."""
        norm = vector("post_attention_norm", self.hidden, self.component)
        return (norm, *gated_mlp("", self.hidden, self.intermediate, self.component, DENSE_ROWS, DENSE_TP))
