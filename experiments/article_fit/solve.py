"""Least squares of logarithms over the rows, each in units of its tolerance, with priors at the public tables."""

from dataclasses import dataclass
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from experiments.article_fit.parameters import FREE, tuned, value, values_at
from experiments.article_fit.rows import ROWS
from experiments.article_fit.steps import Asked, Steps, asked
from experiments.seed_claims.article import CHIP
from experiments.seed_claims.claims import Claim, read_claims
from hw.compat import in_x64
from hw.machine import Machine, load_machine

_GIVEN: Final = 0.1  # of a row that states no tolerance


@dataclass(frozen=True)
class Row:
    """One figure of a claim, and the relative error that it allows."""

    claim: str
    stated: float
    tolerance: float


@dataclass(frozen=True)
class Outcome:
    """Figures by path, before and after, and what each row is predicted to be."""

    before: dict[str, float]
    values: dict[str, float]
    rows: tuple[Row, ...]
    predicted: list[float]


def rows() -> tuple[Row, ...]:
    """The figures that the fit sees, in the order of `ROWS`. Raises ValueError for a claim that is to be checked."""
    claims = {claim.id: claim for claim in read_claims()}
    if wrong := [name for name in ROWS if claims[name].use == "check"]:
        raise ValueError(f"claims {', '.join(wrong)} are to be checked: a curve may not see them")
    return tuple(
        Row(name, part.numbers[0], _tolerance(claims[name]))
        for name, quantities in ROWS.items()
        for part, quantity in zip(claims[name].parsed.parts, quantities, strict=True)
        if quantity is not None
    )


def _tolerance(claim: Claim) -> float:
    return _GIVEN if claim.tolerance == "given" else float(claim.tolerance.rstrip("%")) / 100.0


@in_x64
def solve() -> Outcome:
    """Fit every free figure."""
    machine, seen = load_machine(CHIP), rows()
    theta, predicted = jax.device_get(_solve(machine.anonymous(), asked(), seen))
    after = {path: float(number) for path, number in values_at(machine, theta).items()}
    before = {path: float(jnp.ravel(value(machine, path))[0]) for path in after}
    return Outcome(before, after, seen, [float(p) for p in predicted])


def _predict(machine: Machine, wanted: Asked) -> Float[Array, " rows"]:
    steps = Steps(machine, wanted)
    return jnp.stack([quantity(steps) for parts in ROWS.values() for quantity in parts if quantity is not None])


@eqx.filter_jit
def _solve(
    machine: Machine, wanted: Asked, seen: tuple[Row, ...]
) -> tuple[Float[Array, " free"], Float[Array, " rows"]]:
    stated, allowed = (jnp.array([getattr(row, what) for row in seen]) for what in ("stated", "tolerance"))
    loose = jnp.array([free.loose for free in FREE])

    def predict(theta: Array) -> Array:
        return _predict(tuned(machine, values_at(machine, theta)), wanted)

    def residuals(theta: Array, _: None) -> Array:
        return jnp.concatenate([jnp.log(predict(theta) / stated) / allowed, theta / loose])

    solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
    theta = optx.least_squares(residuals, solver, jnp.zeros(len(FREE)), max_steps=100, throw=False).value
    return theta, predict(theta)
