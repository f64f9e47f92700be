"""A gated MLP on one device."""

from typing import NamedTuple

from jaxtyping import Array, Float

from layouts.dense.activation import Activation
from layouts.linear import contract, linear


class GatedMLP(NamedTuple):
    """Weights: gate and up in one array, so that a cut of the width takes the same part of both."""

    gate_up: Float[Array, "2 width hidden"]
    down: Float[Array, "hidden width"]


def gated_mlp(x: Float[Array, "rows hidden"], weights: GatedMLP, activation: Activation) -> Float[Array, "rows hidden"]:
    """down(activation(gate(x), up(x))). On part of the width it gives a part of the sum."""
    projected = contract("rh,gwh->rgw", x, weights.gate_up)
    return linear(activation(projected[:, 0], projected[:, 1]), weights.down)
