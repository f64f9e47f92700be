"""The two arithmetics in which every cost formula is read.

`Exact` is the truth that users see. `Smooth(tau)` is what gradient descent sees: it has a useful slope everywhere and
becomes `Exact` at every valid layout as `tau` goes to 0. A formula never asks which one it was given.
"""

import abc
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

Real = Float[Array, "..."]

# Neighbouring periods whose kernels reach into one unit interval; 3 a side keeps the slope continuous up to tau = 0.25.
_PERIODS: Final = np.arange(-3.0, 4.0)
# Distance, in kernel widths, between an integer and the rise that follows it: the slope there is below 2 e-8 / tau.
_SETBACK: Final = 18.0


class Arithmetic(eqx.Module):
    """Rounding, extremes and division, in one of two readings."""

    @abc.abstractmethod
    def ceil(self, x: ArrayLike) -> Real:
        """The least integer not below `x`."""

    @abc.abstractmethod
    def maximum(self, a: ArrayLike, b: ArrayLike) -> Real:
        """The larger of two non-negative quantities of one unit."""

    def floor(self, x: ArrayLike) -> Real:
        """The greatest integer not above `x`."""
        return -self.ceil(-jnp.asarray(x))

    def minimum(self, a: ArrayLike, b: ArrayLike) -> Real:
        """The smaller of two non-negative quantities of one unit."""
        return jnp.asarray(a) + jnp.asarray(b) - self.maximum(a, b)


class Exact(Arithmetic):
    """True `ceil` and `max`."""

    def ceil(self, x: ArrayLike) -> Real:
        return jnp.ceil(jnp.asarray(x))

    def maximum(self, a: ArrayLike, b: ArrayLike) -> Real:
        return jnp.maximum(a, b)


class Smooth(Arithmetic):
    """Annealed `ceil` and `max` of sharpness `tau` (1/4 is nearly linear, 1e-4 nearly exact).

    `ceil` equals the identity at every integer for every `tau`: valid layouts live there, and a sum of plain sigmoids
    would return n + 1/2. `max` scales `tau` by its operands, so that seconds and bytes are rounded off alike.
    """

    tau: Float[Array, ""]

    def __init__(self, tau: ArrayLike):
        self.tau = jnp.asarray(tau, dtype=float)

    def ceil(self, x: ArrayLike) -> Real:
        x = jnp.asarray(x)
        base = jnp.floor(x)
        width = self.tau
        rise_at = jnp.minimum(0.5, _SETBACK * width)

        # one axis of periods for three arguments at once: x's fraction, and the ends of its unit interval
        ends = jnp.stack([x - base, jnp.zeros_like(x), jnp.ones_like(x)])
        at, zero, one = jax.nn.sigmoid((ends[..., None] + _PERIODS - rise_at) / width).sum(axis=-1)
        return base + (at - zero) / (one - zero)

    def maximum(self, a: ArrayLike, b: ArrayLike) -> Real:
        a, b = jnp.asarray(a), jnp.asarray(b)
        width = self.tau * (jnp.abs(a) + jnp.abs(b))
        # two zeros have no scale: their maximum is zero, with the slopes of a tie
        scale = jnp.where(width > 0, width, 1.0)
        return b + jnp.where(width > 0, width * jax.nn.softplus((a - b) / scale), 0.5 * (a - b))
