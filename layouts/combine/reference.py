"""Decode context parallelism on one device: partial attention over a rank's tokens, and the merge of the parts.

Base e. A log-sum-exp that is NaN or +inf counts as -inf (an engine's kernel may leave either where a rank holds no
token), and a row whose ranks are all empty is zero: the public code divides by zero there.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def partial_attention(
    query: Float[Array, "rows heads key"],
    keys: Float[Array, "tokens heads key"],
    values: Float[Array, "tokens heads width"],
    held: Bool[Array, " tokens"],
    scale: float,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads"]]:
    """Attention over the tokens that a rank holds, and the log-sum-exp of its scores (-inf where it holds none)."""
    scores = jnp.einsum("rhk,thk->rht", query.astype(jnp.float32), keys.astype(jnp.float32)) * scale
    scores = jnp.where(held[None, None, :], scores, -jnp.inf)
    weights, total, highest = _weights(scores, axis=-1)
    output = jnp.einsum("rht,thw->rhw", weights, values.astype(jnp.float32)) / _divisor(total)[..., None]
    return output.astype(values.dtype), highest + jnp.log(total)


def merge(
    outputs: Float[Array, "*parts_and_rows width"], lse: Float[Array, "*parts_and_rows"], axis: int = 0
) -> tuple[Float[Array, "*rows width"], Float[Array, "*rows"]]:
    """One attention output of the parts along `axis`, those of ranks or pieces of a request's tokens, and its
    log-sum-exp: sum_r exp(lse_r - lse) outputs_r.

    Weights and sums are float32; the output has the dtype of `outputs`. What an empty part left in its output, NaN
    included, does not count.
    """
    lse = lse.astype(jnp.float32)
    lse = jnp.where(jnp.isnan(lse) | jnp.isposinf(lse), -jnp.inf, lse)
    weights, total, highest = _weights(lse, axis)
    parts = jnp.where(weights[..., None] > 0, outputs.astype(jnp.float32), 0.0)
    merged = (weights[..., None] * parts).sum(axis=axis) / _divisor(total)[..., None]
    return merged.astype(outputs.dtype), highest + jnp.log(total)


def _weights(scores: Array, axis: int) -> tuple[Array, Array, Array]:
    """exp(scores - highest) along an axis, their sum, and the highest (0 where every score is -inf)."""
    highest = scores.max(axis=axis, keepdims=True)
    highest = jnp.where(jnp.isneginf(highest), 0.0, highest)
    weights = jnp.exp(scores - highest)
    return weights, weights.sum(axis=axis), highest.squeeze(axis)


def _divisor(total: Array) -> Array:
    return jnp.where(total > 0, total, 1.0)
