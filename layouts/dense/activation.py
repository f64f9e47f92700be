"""What stands between the two GEMMs of a gated MLP; computed in float32, returned in the dtype of the gate."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.shapes import ShapeError


class Activation(Protocol):
    """A function of the gate and the up projection, value by value."""

    def __call__(self, gate: Float[Array, "*rows width"], up: Float[Array, "*rows width"]) -> Array: ...


@dataclass(frozen=True)
class SwiGLU:
    """silu(gate) x up."""

    def __call__(self, gate: Array, up: Array) -> Array:
        g, u = gate.astype(jnp.float32), up.astype(jnp.float32)
        return (jax.nn.silu(g) * u).astype(gate.dtype)


@dataclass(frozen=True)
class SiTU:
    """beta tanh(gate / beta) sigmoid(gate) x b tanh(up / b), with b = `linear_beta`; up as it is where that is 0.

    Both factors are bounded. Source of the formula: SGLang `SituAndMul` (Kimi K3).
    """

    beta: float
    linear_beta: float = 0.0

    def __post_init__(self) -> None:
        if self.beta <= 0 or self.linear_beta < 0:
            raise ShapeError(
                f"SiTU: beta = {self.beta} must be positive and linear_beta = {self.linear_beta} at least 0"
            )

    def __call__(self, gate: Array, up: Array) -> Array:
        g, u = gate.astype(jnp.float32), up.astype(jnp.float32)
        bounded = self.linear_beta * jnp.tanh(u / self.linear_beta) if self.linear_beta else u
        return (self.beta * jnp.tanh(g / self.beta) * jax.nn.sigmoid(g) * bounded).astype(gate.dtype)


@dataclass(frozen=True)
class ClampedSwiGLU:
    """g sigmoid(alpha g) x (u + 1) with the gate clamped from above and up on both sides.

    Source of the formula: transformers `GptOssExperts`, whose alpha is 1.702 and whose limit is the config's
    `swiglu_limit`.
    """

    limit: float
    alpha: float = 1.702

    def __post_init__(self) -> None:
        if self.limit <= 0:
            raise ShapeError(f"clamped SwiGLU: limit = {self.limit} must be positive")

    def __call__(self, gate: Array, up: Array) -> Array:
        g = jnp.minimum(gate.astype(jnp.float32), self.limit)
        u = jnp.clip(up.astype(jnp.float32), -self.limit, self.limit)
        return (g * jax.nn.sigmoid(self.alpha * g) * (u + 1.0)).astype(gate.dtype)
