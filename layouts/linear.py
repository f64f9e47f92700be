"""Products of activations with a weight, whatever it is stored in and in however many blocks it has arrived."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.weight_gather.blocks import Blocks


def linear(
    x: Float[Array, "*rows inp"], weight: Float[Array, "out inp"] | Blocks, bias: Float[Array, " out"] | None = None
) -> Float[Array, "*rows out"]:
    """x times the transposed weight, as checkpoints store it, summed in float32, in the dtype of x."""
    product = _summed("...i,oi->...o", x, weight)
    if bias is not None:
        product = product + bias.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
    return product.astype(x.dtype)


def contract(equation: str, x: Float[Array, "..."], weight: Float[Array, "..."] | Blocks) -> Float[Array, "..."]:
    """An einsum of x with a weight, summed in float32, in the dtype of x."""
    return _summed(equation, x, weight).astype(x.dtype)


def _summed(equation: str, x: Array, weight: Array | Blocks) -> Array:
    if isinstance(weight, Blocks) and (axis := _output_axis(equation, weight.axis)) is not None:
        return weight.in_order([_summed(equation, x, block) for block in weight.blocks], axis)
    return jnp.einsum(equation, x, weight.astype(x.dtype), preferred_element_type=jnp.float32)


def _output_axis(equation: str, axis: int) -> int | None:
    """Where an axis of the weight stands in the output, counted from its end; None for one that x has, too."""
    operands, output = equation.split("->")
    of_x, of_weight = operands.split(",")
    return None if of_weight[axis] in of_x else output.index(of_weight[axis]) - len(output)
