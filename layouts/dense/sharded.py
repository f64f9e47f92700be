"""The gated MLP with its width cut over the attention group."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from layouts.collectives import psum
from layouts.dense.activation import Activation
from layouts.dense.reference import GatedMLP, gated_mlp
from layouts.dense.shape import Dense
from layouts.mesh import Axes


def weight_shapes(dense: Dense) -> GatedMLP:
    """Shape of both weights, whole."""
    shapes: Any = ((2, dense.intermediate, dense.hidden), (dense.hidden, dense.intermediate))
    return GatedMLP(*shapes)


def weight_specs(axes: Axes) -> GatedMLP:
    """How the weights are cut: the width over `attn_tp`."""
    spec: Callable[..., Any] = axes.spec  # a spec stands where its weight does
    return GatedMLP(spec(None, "attn_tp", None), spec(None, "attn_tp"))


def dense(
    x: Float[Array, "rows hidden"], weights: GatedMLP, activation: Activation, axes: Axes
) -> Float[Array, "rows hidden"]:
    """The rows of an attention group through its MLP: each rank its part of the width, then the sum."""
    return psum(gated_mlp(x, weights, activation), axes["attn_tp"])
