"""Levenberg-Marquardt over several starts at once: one small loop, whatever it is given traced twice."""

from collections.abc import Callable
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_STEPS: Final = 150
_DAMPING: Final = 1e-2  # at the start, in units of the diagonal of the normal equations
_EASED, _RAISED = 0.2, 4.0  # what it is multiplied by after a step that helped, and after one that did not
_LEAST, _MOST = 1e-12, 1e12
_STILL: Final = 1e-12  # relative decrease of the sum of squares that counts as none


class _At(NamedTuple):
    """Where the search stands, for each start."""

    theta: Float[Array, "starts parameters"]
    cost: Float[Array, " starts"]
    residual: Float[Array, "starts residuals"]
    slope: Float[Array, "starts residuals parameters"]
    damping: Float[Array, " starts"]
    step: Array
    moving: Array


def least_squares(
    residuals: Callable[[Float[Array, " parameters"]], Float[Array, " residuals"]],
    starts: Float[Array, "starts parameters"],
) -> tuple[Float[Array, "starts parameters"], Float[Array, " starts"]]:
    """Where the sum of squares of `residuals` is least near each start, and the sum there.

    A start at which it is not finite stays where it is. Marquardt's scaling: damping is in units of the diagonal of
    J^T J, so that parameters of any size move alike.
    """

    def seen(theta: Array) -> tuple[Array, Array, Array]:
        def one(t: Array) -> tuple[Array, Array]:
            found = residuals(t)
            return found, found

        slope, residual = jax.vmap(jax.jacfwd(one, has_aux=True))(theta)
        return jnp.sum(residual**2, axis=1), residual, slope

    def step(at: _At) -> _At:
        normal = jnp.einsum("srp,srq->spq", at.slope, at.slope)
        diagonal = jnp.diagonal(normal, axis1=1, axis2=2)
        damped = normal + jax.vmap(jnp.diag)(at.damping[:, None] * diagonal + _LEAST)
        pull = jnp.einsum("srp,sr->sp", at.slope, at.residual)
        theta = at.theta - jnp.linalg.solve(damped, pull[..., None])[..., 0]
        cost, residual, slope = seen(theta)
        better = cost < at.cost  # NaN is not
        settled = better & (at.cost - cost <= _STILL * at.cost)
        stuck = ~better & (at.damping >= _MOST)

        def kept(new: Array, old: Array) -> Array:
            return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        damping = jnp.clip(at.damping * jnp.where(better, _EASED, _RAISED), _LEAST, _MOST)
        return _At(
            kept(theta, at.theta), kept(cost, at.cost), kept(residual, at.residual), kept(slope, at.slope),
            damping, at.step + 1, at.moving & ~settled & ~stuck,
        )  # fmt: skip

    count = len(starts)
    first = _At(starts, *seen(starts), jnp.full(count, _DAMPING), jnp.zeros((), int), jnp.ones(count, bool))
    last = lax.while_loop(lambda at: (at.step < _STEPS) & at.moving.any(), step, first)
    return last.theta, last.cost
