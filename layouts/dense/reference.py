"""A gated MLP on one device."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.dense.activation import Activation


class GatedMLP(NamedTuple):
    """Weights: gate and up in one array, so that a cut of the width takes the same part of both."""

    gate_up: Float[Array, "2 width hidden"]
    down: Float[Array, "hidden width"]


def linear(x: Float[Array, "*rows inp"], weight: Float[Array, "out inp"]) -> Float[Array, "*rows out"]:
    """x times the transposed weight: summed in float32, in the dtype of x, whatever the weight is stored in."""
    summed = jnp.einsum("...i,oi->...o", x, weight.astype(x.dtype), preferred_element_type=jnp.float32)
    return summed.astype(x.dtype)


def gated_mlp(x: Float[Array, "rows hidden"], weights: GatedMLP, activation: Activation) -> Float[Array, "rows hidden"]:
    """down(activation(gate(x), up(x))). On part of the width it gives a part of the sum."""
    projected = jnp.einsum(
        "rh,gwh->rgw", x, weights.gate_up.astype(x.dtype), preferred_element_type=jnp.float32
    ).astype(x.dtype)
    return linear(activation(projected[:, 0], projected[:, 1]), weights.down)
