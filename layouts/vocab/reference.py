"""Embedding, logits and greedy sampling on one device."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def embed(table: Float[Array, "vocab hidden"], tokens: Int[Array, " rows"]) -> Float[Array, "rows hidden"]:
    """The row of each token."""
    return table[tokens]


def logits(hidden: Float[Array, "rows hidden"], head: Float[Array, "vocab hidden"]) -> Float[Array, "rows vocab"]:
    """Score of every token of the vocabulary, float32."""
    return jnp.einsum("rh,vh->rv", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)


def greedy(scores: Float[Array, "rows vocab"]) -> Int[Array, " rows"]:
    """The token of the highest score, the lowest of several (int32)."""
    return jnp.argmax(scores, axis=1).astype(jnp.int32)
