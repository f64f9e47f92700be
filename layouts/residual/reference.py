"""Residual stream and RMSNorm on one device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "*rows dim"], weight: Float[Array, " dim"], eps: float) -> Float[Array, "*rows dim"]:
    """x / sqrt(mean(x^2) + eps) times the weight, in float32 until the end."""
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + eps)
    return (scaled * weight.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def add_norm(
    update: Float[Array, "rows hidden"],
    residual: Float[Array, "rows hidden"],
    weight: Float[Array, " hidden"],
    eps: float,
) -> tuple[Float[Array, "rows hidden"], Float[Array, "rows hidden"]]:
    """The stream with a layer part's output added, normed; and the stream itself."""
    residual = residual + update
    return rms_norm(residual, weight, eps), residual
