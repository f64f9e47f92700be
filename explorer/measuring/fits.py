"""Curves of the machine from its rows: one fit a family and rate, or kind of exchange, with the formulas of `hw.time`.

What the rows of a family do not tell stays as the machine's curves have it. So does a curve that predicts rows better
than a fit does that has not seen them.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.calibration.measured import Rows
from explorer.measuring.asked import Asked, Mine, Own, alone, exchanges, in_order, kernels, parts_of, place_of, rows_of
from hw.arithmetic import Exact
from hw.compat import in_x64, on_host
from hw.curve_forms import tuned
from hw.fitting import Quality, fit
from hw.machine import Machine
from hw.programs import compiled
from hw.time import compute_seconds
from hw.work import Family, Rate

_SMALLER: Final = "it is the smaller part of the rows that it is in"
_LARGER: Final = 0.5  # share of the seconds of rows that makes a family the one that they are about
# Seconds that fits take where nothing was compiled before: until the first begins, and each, of a core.
_UNTIL_FITS: Final = 8.0
_FIT: Final = 2.5


@dataclass(frozen=True)
class Curve:
    """A fitted curve: its parameters, and how well they do on the rows that they were fitted to. `before`: median error
    of the curve that it replaces."""

    owner: str
    rate: str | None
    values: Mapping[str, float]
    quality: Quality
    before: float
    rows: Mine


class Kept(NamedTuple):
    """A curve that rows tell something about and that stays as the machine has it, and why."""

    name: str
    why: str


class Fits(NamedTuple):
    """Curves that were fitted, families before exchanges; and those that stay."""

    curves: tuple[Curve, ...]
    kept: tuple[Kept, ...]


def fitting_seconds(curves: int) -> float:
    """Seconds that fits of so many curves take, roughly."""
    return _UNTIL_FITS + _FIT * curves / (os.cpu_count() or 1)


@in_x64
@on_host()
def curves_of(machine: Machine, rows: Rows, asked: Collection[str] = ()) -> Fits:
    """The curves that the rows tell.

    A family that has too few rows to itself is fitted to those that it shares, the others as they are fitted by then,
    if it is the larger part of them or its name was `asked` for: what is left of others' rows is no curve.
    """
    at = machine.anonymous()
    owners = in_order(rows)
    own_rows = {own: kernels(at, rows, own, alone(rows, own)) for own in owners}
    kinds = [exchanges(at, rows, kind) for kind in dict.fromkeys(rows.collective.kind)]
    first = [*([curve] for curve in own_rows.values() if curve.enough), *kinds]
    off = _off(at, rows)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda options: _fitted(options, off), first))
    told = len(first) - len(kinds)
    of_kernels, of_exchanges = done[:told], done[told:]
    for found in of_kernels:
        at = _with_curve(at, found)
    for own in (own for own in owners if not own_rows[own].enough):
        shared = kernels(at, rows, own, rows_of(rows, own))
        of_others = own[0] not in asked and _share(machine.anonymous(), rows, own) < _LARGER
        found = Kept(shared.name, _SMALLER) if of_others else _fitted([shared], _off(at, rows))
        of_kernels.append(found)
        at = _with_curve(at, found)
    found = (*of_kernels, *of_exchanges)
    return Fits(tuple(f for f in found if isinstance(f, Curve)), tuple(f for f in found if isinstance(f, Kept)))


@in_x64
@on_host()
def predicted(machine: Machine, rows: Rows) -> Float[np.ndarray, " rows"]:
    """Seconds of each row on the machine."""
    return np.asarray(_priced(machine.anonymous(), rows)[0])


def _fitted(options: Sequence[Asked], off: Float[np.ndarray, " all"]) -> Curve | Kept:
    """Of several choices of free parameters the one that does best on rows held out; none if it does worse there than
    the curve that is there, whose errors of all rows are `off`."""
    enough = [asked for asked in options if asked.enough]
    if not enough:
        fewest = min(options, key=lambda asked: asked.needed)
        return Kept(fewest.name, f"a fit needs {fewest.needed} rows, and there are {len(fewest.rows)}")
    best = min((_fit(asked, off) for asked in enough), key=lambda curve: curve.quality.held_out)
    held_out, before = 100 * best.quality.held_out, 100 * best.before
    if held_out > before:
        said = f"a fit to its {len(best.rows)} rows is {held_out:.1f} % off those held out, and it is {before:.1f} %"
        return Kept(enough[0].name, said)
    return best


def _fit(asked: Asked, off: Float[np.ndarray, " all"]) -> Curve:
    with on_host():  # which a thread has to say for itself
        values, quality = fit(asked.predict, asked.free, asked.seconds, np.arange(len(asked.rows)), asked.seconds)
    before = float(np.median(off[asked.rows]))
    return Curve(asked.owner, asked.rate, {**asked.fixed, **values}, quality, before, asked.rows)


def _with_curve(machine: Machine, found: Curve | Kept) -> Machine:
    if isinstance(found, Kept):
        return machine
    return tuned(machine, "curves", found.values, place_of((Family(found.owner), Rate(found.rate))))


def _off(machine: Machine, rows: Rows) -> Float[np.ndarray, " rows"]:
    return np.abs(predicted(machine, rows) / rows.seconds - 1.0)


def _share(machine: Machine, rows: Rows, own: Own) -> float:
    """Median share of the family in the predicted seconds of the rows that it has a part in."""
    parts = np.asarray(_priced(machine, rows)[1])
    mine = np.bincount(rows.owner, parts * parts_of(rows, own))
    return float(np.median((mine / np.bincount(rows.owner, parts))[rows_of(rows, own)]))


def _all_priced(machine: Machine, rows: Rows) -> tuple[Float[Array, " rows"], Float[Array, " kernels"]]:
    return rows.predict(machine, jnp.ones(())), compute_seconds(Exact(), machine, rows.work)


_priced = compiled(_all_priced)
