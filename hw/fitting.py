"""Fitting a curve to measured rows: least squares of logarithms, by Levenberg-Marquardt, with held-out errors.

The rows are priced by `hw.time` itself, so that what is fitted is what is used.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hw.compat import in_x64
from hw.curve_forms import Free
from hw.least_squares import least_squares
from hw.programs import compiled

Predict = Callable[[Mapping[str, Array]], Float[Array, " rows"]]

# Relative error beyond which a row pulls with its sign alone: tables repeat within a few per cent.
_SOFT: Final = 0.05
_PRIOR: Final = 0.02  # in units of a parameter's logarithm: a parameter that no row tells stays where it starts
_STARTS: Final = 4
_SCATTER: Final = 0.7  # of the starting points, in the same units
_FOLDS: Final = 5
_LARGEST: Final = 0.1  # share of the rows that the extrapolation leaves out


class Quality(NamedTuple):
    """How well a fit does, as fractions: medians and 80th percentiles of |predicted / measured - 1|.

    `held_out`: of rows in folds that were not fitted, no problem in two folds. `extrapolated`: median over the tenth
    of the rows with the most work, fitted to the others, and its bias.
    """

    rows: int
    median: float
    held_out: float
    held_out_p80: float
    extrapolated: float
    extrapolated_bias: float


@in_x64
def fit(
    predict: Predict,
    free: Mapping[str, Free],
    seconds: Float[np.ndarray, " rows"],
    problem: np.ndarray,
    work: Float[np.ndarray, " rows"],
) -> tuple[dict[str, float], Quality]:
    """Parameters that predict all rows best, and what the same fit does without some of them.

    `problem` numbers the distinct problems; `work` orders them by size for the extrapolation.
    """
    masks = _masks(problem, work)
    values, errors = jax.device_get(_solved(predict, dict(free), jnp.asarray(seconds), jnp.asarray(masks)))
    off = np.expm1(errors)
    folds, last = masks[1 : 1 + _FOLDS], masks[-1]
    held_out = np.concatenate([np.abs(off[1 + i][mask == 0]) for i, mask in enumerate(folds)])
    beyond = off[-1][last == 0]
    quality = Quality(
        rows=len(seconds),
        median=float(np.median(np.abs(off[0]))),
        held_out=float(np.median(held_out)),
        held_out_p80=float(np.quantile(held_out, 0.8)),
        extrapolated=float(np.median(np.abs(beyond))) if beyond.size else float("nan"),
        extrapolated_bias=float(np.median(beyond)) if beyond.size else float("nan"),
    )
    return {name: float(column[0]) for name, column in values.items()}, quality


def _masks(problem: np.ndarray, work: np.ndarray) -> Float[np.ndarray, "fits rows"]:
    """1 for the rows that each fit sees: all, all but a fold, all but the largest."""
    order = np.random.default_rng(0).permutation(int(problem.max()) + 1)
    fold = order[problem] % _FOLDS
    smaller = work <= np.quantile(work, 1.0 - _LARGEST)
    return np.stack([np.ones(len(work)), *(fold != i for i in range(_FOLDS)), smaller]).astype(float)


def _solve(
    predict: Predict, free: dict[str, Free], seconds: Array, masks: Array
) -> tuple[dict[str, Array], Float[Array, "fits rows"]]:
    names = list(free)
    least, most = (jnp.log(jnp.array([getattr(free[n], end) for n in names])) for end in ("least", "most"))
    middle = jnp.log(jnp.array([free[n].start for n in names]))
    share = (middle - least) / (most - least)
    centre = jnp.log(share / (1.0 - share))

    def values(theta: Array) -> dict[str, Array]:
        logs = least + (most - least) * jax.nn.sigmoid(centre + theta)
        return dict(zip(names, jnp.exp(logs), strict=True))

    def errors(theta: Array) -> Array:
        return jnp.log(predict(values(theta)) / seconds)

    def residuals(theta: Array, mask: Array) -> Array:
        scaled = errors(theta) / _SOFT
        # soft L1: 2 (sqrt(1 + z^2) - 1), whose root keeps its sign and a slope at 0
        soft = scaled * jnp.sqrt(2.0 / (1.0 + jnp.sqrt(1.0 + scaled**2)))
        return jnp.concatenate([soft * mask, _PRIOR * theta])

    scatter = jax.random.normal(jax.random.key(0), (_STARTS, len(names))) * _SCATTER
    starts = scatter.at[0].set(0.0)

    def best(mask: Array) -> Array:
        found, cost = least_squares(lambda theta: residuals(theta, mask), starts)
        return found[jnp.argmin(jnp.where(jnp.isfinite(cost), cost, jnp.inf))]

    theta = jax.vmap(best)(masks)
    return jax.vmap(values)(theta), jax.vmap(errors)(theta)


_solved = compiled(_solve)
