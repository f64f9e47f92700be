"""A projection as checkpoints store it: rows of a weight are outputs."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(
    x: Float[Array, "*rows inp"], weight: Float[Array, "out inp"], bias: Float[Array, " out"] | None = None
) -> Float[Array, "*rows out"]:
    """x times the transposed weight, summed in float32, in the dtype of x, whatever the weight is stored in."""
    product = jnp.einsum("...i,oi->...o", x, weight.astype(x.dtype), preferred_element_type=jnp.float32)
    if bias is not None:
        product = product + bias.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
    return product.astype(x.dtype)
