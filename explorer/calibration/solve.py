"""The most likely factors: least squares of logarithms, each held near 1 as firmly as its public fit is known."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.calibration.factors import FACTORS, adjusted
from explorer.calibration.observed import Observed
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept

Column = Float[np.ndarray, " factors_and_engine"]
Seconds = Float[np.ndarray, " observations"]

# Logarithm by which some observation must move with a factor's own to count as touching it.
_TOUCHED: Final = 0.01
# Standard deviations beyond which an observation pulls no harder: no file is free of odd rows.
_OUTLYING: Final = 2.0
# How far an engine's own work in a step may lie off, as a logarithm: its public fit is common to all machines, whose
# CPUs differ by as much.
ENGINE_WIDTH: Final = 0.3

_ROUNDS: Final = 100
_SETTLED: Final = 1e-4  # standard deviations of a prior
_GAINED: Final = 1e-4  # squares of standard deviations: what a step must gain at least
_DAMPING: Final = 1e-3  # at first; beyond the last no step helps
_STUCK: Final = 1e9


class Fit(NamedTuple):
    """`logs` of the factors (0 where nothing touches them), the engine's last; `pulls`: the same over their widths.
    `before` and `after`: predicted seconds.

    `told`: how much of a factor's prior variance the observations take away, 0 to 1.
    """

    logs: Column
    pulls: Column
    touched: Column
    told: Column
    before: Seconds
    after: Seconds


class _Point(NamedTuple):
    """Predictions as logarithms and their slopes by the pulls; residuals with the prior's, and their slopes."""

    predicted: Seconds
    slopes: Float[np.ndarray, "observations factors_and_engine"]
    residuals: Float[np.ndarray, " rows"]
    jacobian: Float[np.ndarray, "rows factors_and_engine"]

    @property
    def cost(self) -> float:
        return float(self.residuals @ self.residuals)


@in_x64
def solve(machine: Machine, observed: Sequence[Observed], widths: Float[np.ndarray, " factors"]) -> Fit:
    """Minimise sum rho((ln predicted - ln measured) / sd) + sum (ln factor / width)^2 by Levenberg-Marquardt.

    rho is a square that grows as the error itself beyond two sd (soft L1). Slopes go through the machine's own formulas
    (`hw.time`) and the schedule. What no observation touches is no part of it.
    """
    scale = np.append(widths, ENGINE_WIDTH)
    assert len(widths) == len(FACTORS)
    measured = np.log(np.concatenate([o.seconds for o in observed]))
    errors = np.concatenate([o.widths for o in observed])

    def at(pulls: Column) -> _Point:
        found = jax.device_get(_predicted(machine.anonymous(), tuple(observed), pulls * scale))
        predicted, slopes = found[0], found[1] * scale
        soft, slope = _soft((predicted - measured) / errors)
        jacobian = np.concatenate([(slope / errors)[:, None] * slopes, np.eye(len(pulls))])
        return _Point(predicted, slopes, np.concatenate([soft, pulls]), jacobian)

    start = at(np.zeros(len(scale)))
    touched = (np.max(np.abs(start.slopes), axis=0) > _TOUCHED * scale).astype(np.float64)
    pulls, end = np.zeros(len(scale)), start
    damping = _DAMPING
    for _ in range(_ROUNDS):
        step = _step(end, touched, damping)
        trial = at(pulls + step)
        gained = end.cost - trial.cost
        if gained >= 0.0:
            pulls, end, damping = pulls + step, trial, damping / 5.0
        else:
            damping *= 5.0
        if np.max(np.abs(step)) < _SETTLED or 0.0 <= gained < _GAINED or damping > _STUCK:
            break
    # with unit priors the variances left are the diagonal of (J'J + 1)^-1
    told = end.slopes * touched / errors[:, None]
    left = np.diagonal(np.linalg.inv(told.T @ told + np.eye(len(scale))))
    return Fit(pulls * scale, pulls, touched, touched * (1.0 - left), np.exp(start.predicted), np.exp(end.predicted))


@in_x64
def predicted_seconds(machine: Machine, observed: Sequence[Observed]) -> Seconds:
    """What a machine takes for every observation, by the program that `solve` walks on."""
    logs, _ = _predicted(machine.anonymous(), tuple(observed), np.zeros(len(FACTORS) + 1))
    return np.exp(np.asarray(logs))


def _step(point: _Point, touched: Column, damping: float) -> Column:
    """The damped Gauss-Newton step in the factors that are touched."""
    jacobian = point.jacobian * touched
    normal = jacobian.T @ jacobian
    damped = normal + np.diag(damping * np.diagonal(normal) + (1.0 - touched))
    return -np.linalg.solve(damped, jacobian.T @ point.residuals)


def _soft(off: Seconds) -> tuple[Seconds, Seconds]:
    """Errors in sd whose square grows as the error itself beyond `_OUTLYING` (the root of soft L1), and their slope."""
    root = np.sqrt(1.0 + (off / _OUTLYING) ** 2)
    shrunk = np.sqrt(2.0 / (1.0 + root))
    return off * shrunk, shrunk * (1.0 - (off / _OUTLYING) ** 2 / (2.0 * root * (1.0 + root)))


@kept(COMPILE_TO_RUN_ONCE)
def _predicted(machine: Machine, observed: tuple[Observed, ...], logs: Float[ArrayLike, " all"]) -> tuple[Array, Array]:
    """Logarithms of the predicted seconds, and their slopes by the logarithms of the factors."""

    def predicted(logs: Array) -> tuple[Array, Array]:
        there = adjusted(machine, logs[:-1])
        found = jnp.log(jnp.concatenate([o.predict(there, jnp.exp(logs[-1])) for o in observed]))
        return found, found

    slopes, found = jax.jacfwd(predicted, has_aux=True)(jnp.asarray(logs))
    return found, slopes
