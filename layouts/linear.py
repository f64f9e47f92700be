"""A projection as checkpoints store it: rows of a weight are outputs."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(
    x: Float[Array, "rows inp"], weight: Float[Array, "out inp"], bias: Float[Array, " out"] | None = None
) -> Float[Array, "rows out"]:
    """x times the transposed weight, summed in float32, in the dtype of x."""
    product = jnp.einsum("ri,oi->ro", x, weight.astype(x.dtype), preferred_element_type=jnp.float32)
    return (product if bias is None else product + bias.astype(jnp.float32)[None, :]).astype(x.dtype)
