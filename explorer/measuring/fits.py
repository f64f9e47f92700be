"""Curves of the machine from its rows: one fit a family and rate, or kind of exchange, with the formulas of `hw.time`.

What the rows of a family do not tell stays as the chip's curves have it.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from explorer.calibration.measured import Rows
from hw.arithmetic import Exact
from hw.compat import in_x64, on_host
from hw.curve_forms import AMONG_MANY, EXCHANGES, FIXED, KERNELS, PROTOCOLS, WARM, Free, tuned
from hw.fitting import Predict, Quality, fit
from hw.machine import Machine
from hw.time import collective_seconds, compute_seconds
from hw.work import (
    COLLECTIVES,
    EXCHANGE_SHAPES,
    FAMILIES,
    RATES,
    SHAPES,
    Collective,
    CollectiveKind,
    Family,
    Rate,
    Work,
)

Mine = Int[np.ndarray, " rows"]
LEAST_ROWS: Final = 4  # below which a curve is not fitted


# Blocks of our kernel start once and take equal shares: what is fitted of it and what is set, other than of an
# engine's. A row of a request that was cut takes a program of the merge, so that a value costs more than its bytes.
_SHARED: Final = {**KERNELS[Family.ATTENTION_HEADS], "copy_bytes": Free(8.0, 0.5, 200.0)}
_OURS: Final = {Family.ATTENTION: (_SHARED, {"waves": 1.0, "cta_latency": 0.0, "split_latency": 0.0})}
# What a parameter needs of some row, to be told by the rows: a shape above a number.
_TOLD_BY: Final = {
    "copy_bytes": (("copied", 0.0),),
    "split_latency": (("splits", 1.0),),
    "step_latency": (("steps", 0.0),),
    "cta_latency": (("ctas", 0.0), ("columns", 0.0)),
}


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


@in_x64
@on_host()
def curves_of(machine: Machine, rows: Rows) -> tuple[Curve, ...]:
    """The curves that the rows tell, families before exchanges.

    Rows of several families count for one that has too few to itself, with the others as they are fitted by then.
    """
    at = machine.anonymous()
    off = np.abs(np.asarray(rows.predict(at, jnp.ones(()))) / rows.seconds - 1.0)

    def fitted(asked: _Asked) -> Curve:
        seconds = rows.seconds[asked.rows]
        with on_host():  # which a thread has to say for itself
            values, quality = fit(asked.predict, asked.free, seconds, np.arange(len(seconds)), seconds)
        values = {**asked.fixed, **values}
        return Curve(asked.owner, asked.rate, values, quality, float(np.median(off[asked.rows])), asked.rows)

    families = [own for own in _in_order(rows) if len(_rows_of(rows, *own)) >= LEAST_ROWS]
    alone = [own for own in families if len(_alone(rows, *own)) >= LEAST_ROWS]
    first = [_kernels(at, rows, *own, _alone(rows, *own)) for own in alone]
    kinds = [asked for kind in dict.fromkeys(rows.collective.kind) if (asked := _exchanges(at, rows, kind))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(fitted, [*first, *kinds]))
    kernels, exchanges = found[: len(first)], found[len(first) :]
    for curve in kernels:
        at = _with_curve(at, curve)
    for own in families[len(alone) :]:
        kernels.append(fitted(_kernels(at, rows, *own, _rows_of(rows, *own))))
        at = _with_curve(at, kernels[-1])
    return (*kernels, *exchanges)


def _with_curve(machine: Machine, curve: Curve) -> Machine:
    place = FAMILIES.index(Family(curve.owner)), RATES.index(Rate(curve.rate))
    return tuned(machine, "curves", curve.values, place)


def _in_order(rows: Rows) -> list[tuple[Family, Rate]]:
    """Families at their rates, those with the largest share of rows to themselves first."""
    owners = dict.fromkeys(zip(rows.work.family, rows.work.rate, strict=True))
    return sorted(owners, key=lambda own: -len(_alone(rows, *own)) / len(_rows_of(rows, *own)))


def _alone(rows: Rows, family: Family, rate: Rate) -> Mine:
    """The rows in which no other family has a part."""
    return np.setdiff1d(_rows_of(rows, family, rate), rows.owner[~_is(rows, family, rate)])


def _rows_of(rows: Rows, family: Family, rate: Rate) -> Mine:
    return np.unique(rows.owner[_is(rows, family, rate)])


def _is(rows: Rows, family: Family, rate: Rate) -> Bool[np.ndarray, " kernels"]:
    return np.array([f is family and r is rate for f, r in zip(rows.work.family, rows.work.rate, strict=True)], bool)


class _Kernels(eqx.Module):
    """Seconds of rows of kernels on a machine one of whose families has other parameters."""

    machine: Machine
    work: Work
    owner: Int[np.ndarray, " kernels"]
    fixed: Mapping[str, float] = eqx.field(static=True)
    place: tuple[int, int] = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __call__(self, values: Mapping[str, Array]) -> Float[Array, " rows"]:
        here = tuned(self.machine, "curves", {**self.fixed, **values}, self.place)
        return jnp.zeros(self.count).at[self.owner].add(compute_seconds(Exact(), here, self.work))


class _Exchanges(eqx.Module):
    """The same of exchanges."""

    machine: Machine
    collective: Collective
    place: int = eqx.field(static=True)

    def __call__(self, values: Mapping[str, Array]) -> Float[Array, " rows"]:
        return collective_seconds(Exact(), tuned(self.machine, "exchange", values, (self.place,)), self.collective)


class _Asked(NamedTuple):
    """A curve to be fitted: what its free parameters, beside those that are set, predict of which rows."""

    owner: str
    rate: str | None
    predict: Predict
    free: Mapping[str, Free]
    fixed: Mapping[str, float]
    rows: Mine


def _kernels(machine: Machine, rows: Rows, family: Family, rate: Rate, mine: Mine) -> _Asked:
    """Rows of a family as a function of its parameters; parts of other families at what the machine has."""
    parts, w = np.flatnonzero(np.isin(rows.owner, mine)), rows.work
    columns = {name: np.asarray(getattr(w, name))[parts] for name in ("flops", "bytes", *SHAPES)}
    work = Work.of([w.family[i] for i in parts], [w.rate[i] for i in parts], **columns)
    form, fixed = _OURS.get(family, (KERNELS[family], FIXED.get(family, {})))
    place = FAMILIES.index(family), RATES.index(rate)
    predict = _Kernels(machine, work, np.searchsorted(mine, rows.owner[parts]), fixed, place, len(mine))
    told = {name for name, of in _TOLD_BY.items() if any((columns[shape] > least).any() for shape, least in of)}
    free = {name: how for name, how in form.items() if name in told or name not in (*WARM, *_TOLD_BY)}
    return _Asked(family, rate, predict, free, fixed, mine)


def _exchanges(machine: Machine, rows: Rows, kind: CollectiveKind) -> _Asked | None:
    """The same of a kind of exchange; None where too few were timed."""
    mine, c = np.flatnonzero([k is kind for k in rows.collective.kind]), rows.collective
    if len(mine) < LEAST_ROWS:
        return None
    columns = {name: np.asarray(getattr(c, name))[mine] for name in ("payload", "size", "stride", *EXCHANGE_SHAPES)}
    predict = _Exchanges(machine, Collective.of([kind] * len(mine), **columns), COLLECTIVES.index(kind))
    # groups of one size say nothing of what further ranks add
    one_size = len(set(columns["size"].tolist())) == 1 and kind in AMONG_MANY
    free = PROTOCOLS if one_size else EXCHANGES[kind]
    return _Asked(kind, None, predict, free, {}, len(rows.names) - len(c.kind) + mine)
