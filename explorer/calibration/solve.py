"""The most likely factors: least squares of logarithms, each factor held near 1 as firmly as its public fit is known."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from explorer.calibration.factors import FACTORS, adjusted
from explorer.calibration.observed import Observed
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept

# Logarithm by which some observation must move with a factor's own to count as touching it.
_TOUCHED: Final = 0.01
_STEPS: Final = 200
_OUTLYING: Final = 2.0  # standard deviations
# How far an engine's own work in a step may lie off, as a logarithm: its public fit is common to all machines.
ENGINE_WIDTH: Final = 0.5


class Fit(NamedTuple):
    """`logs` of the factors (0 where nothing touches them), the engine's last; `pulls`: the same over their widths.
    `before` and `after`: predicted seconds.

    `told`: how much of a factor's prior variance the observations take away, 0 to 1.
    """

    logs: Float[np.ndarray, " factors_and_engine"]
    pulls: Float[np.ndarray, " factors_and_engine"]
    touched: Float[np.ndarray, " factors_and_engine"]
    told: Float[np.ndarray, " factors_and_engine"]
    before: Float[np.ndarray, " observations"]
    after: Float[np.ndarray, " observations"]


@in_x64
def solve(machine: Machine, observed: Sequence[Observed], widths: Float[np.ndarray, " factors"]) -> Fit:
    """Minimise sum ((ln predicted - ln measured) / sd)^2 + sum (ln factor / width)^2 by Levenberg-Marquardt.

    An observation further off than two sd pulls no harder than one at two: no file is free of odd rows.
    The gradient goes through the machine's own formulas (`hw.time`) and the schedule. What no observation touches is
    no part of it.
    """
    assert len(widths) == len(FACTORS)
    priors = np.append(widths, ENGINE_WIDTH)
    return jax.device_get(_solve(machine.anonymous(), tuple(observed), priors))


@kept(COMPILE_TO_RUN_ONCE)
def _solve(machine: Machine, observed: tuple[Observed, ...], widths: Float[Array, " all"]) -> Fit:
    measured = jnp.log(jnp.concatenate([jnp.asarray(o.seconds) for o in observed]))
    errors = jnp.concatenate([jnp.asarray(o.widths) for o in observed])
    widths = jnp.asarray(widths)

    def predicted(logs: Array) -> Array:
        there = adjusted(machine, logs[:-1])
        return jnp.log(jnp.concatenate([o.predict(there, jnp.exp(logs[-1])) for o in observed]))

    none = jnp.zeros(len(widths))
    start, slopes = predicted(none), jax.jacfwd(predicted)(none)
    touched = (jnp.max(jnp.abs(slopes), axis=0) > _TOUCHED).astype(none.dtype)

    def residuals(pulls: Array, _: None) -> Array:
        return jnp.concatenate([_soft((predicted(pulls * widths * touched) - measured) / errors), pulls])

    solver = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    pulls = optx.least_squares(residuals, solver, none, max_steps=_STEPS, throw=False).value
    logs = pulls * widths * touched
    # with unit priors the variances left are the diagonal of (J'J + 1)^-1
    told = jax.jacfwd(lambda p: predicted(p * widths * touched) / errors)(pulls)
    left = jnp.diagonal(jnp.linalg.inv(told.T @ told + jnp.eye(len(widths))))
    return Fit(logs, pulls, touched, touched * (1.0 - left), jnp.exp(start), jnp.exp(predicted(logs)))


def _soft(off: Array) -> Array:
    """Errors in standard deviations whose square grows as the error itself beyond `_OUTLYING`: soft L1, by its root."""
    z = off / _OUTLYING
    return off * jnp.sqrt(2.0 / (1.0 + jnp.sqrt(1.0 + z**2)))
