"""The two arithmetics in which every cost formula is read.

`Exact` is the truth that users see. `Smooth(tau)` is what gradient descent sees: it has a useful slope everywhere and
becomes `Exact` at every valid layout as `tau` goes to 0. A formula never asks which one it was given.
"""

import abc
from typing import Final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

Real = Float[Array, "..."]

# Under the root of a maximum: two zeros would have no slope there.
_TINY: Final = 1e-300


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
    """Annealed `ceil` and `max` of sharpness `tau`: 1/4 leaves a straight line, 1e-5 is exact to 1e-4.

    Both are algebraic, with a continuous slope and no exponentials: a search inlines dozens of them. `ceil` equals the
    identity at every integer for every `tau`: valid layouts live there, and a sum of sigmoids would return n + 1/2.
    `max` scales `tau` by its operands, so that seconds and bytes are rounded off alike.
    """

    tau: Float[Array, ""]

    def __init__(self, tau: ArrayLike):
        self.tau = jnp.asarray(tau, dtype=float)

    def ceil(self, x: ArrayLike) -> Real:
        """A straight line mixed with a smooth step that rises just after each integer.

        Sharpness is relative to x: of thousands, rounding up hardly matters, and a staircase would hide the slope.
        """
        x = jnp.asarray(x)
        line = jnp.minimum(4.0 * self.tau * jnp.maximum(jnp.abs(x), 1.0), 1.0)
        base = jnp.floor(x)
        t = jnp.minimum((x - base) / line, 1.0)
        return base + line * (x - base) + (1.0 - line) * t * t * (3.0 - 2.0 * t)

    def maximum(self, a: ArrayLike, b: ArrayLike) -> Real:
        """The upper branch of a hyperbola; at a tie it lies tau (a + b) / 2 above."""
        a, b = jnp.asarray(a), jnp.asarray(b)
        width = self.tau * (a + b)
        return 0.5 * (a + b + jnp.sqrt((a - b) ** 2 + width**2 + _TINY))
