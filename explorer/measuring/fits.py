"""Curves of the machine from its rows: one fit a family and rate, or kind of exchange, with the formulas of `hw.time`.

What the rows of a family do not tell stays as the chip's curves have it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from explorer.calibration.measured import Rows
from hw.arithmetic import Exact
from hw.compat import in_x64
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
Frees = Mapping[str, Free]
LEAST_ROWS: Final = 4  # below which a curve is not fitted


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
def curves_of(machine: Machine, rows: Rows) -> tuple[Curve, ...]:
    """The curves that the rows tell, families before exchanges.

    Rows of several families are taken for each of them, with the others as they are fitted by then: those that have
    rows of their own come first.
    """
    found: list[Curve] = []
    at = machine.anonymous()
    off = np.abs(np.asarray(rows.predict(at, jnp.ones(()))) / rows.seconds - 1.0)

    def add(
        owner: str, rate: str | None, predict: Predict, free: Mapping[str, Free], mine: Mine
    ) -> Mapping[str, float]:
        seconds = rows.seconds[mine]
        values, quality = fit(predict, free, seconds, np.arange(len(mine)), seconds)
        found.append(Curve(owner, rate, values, quality, float(np.median(off[mine])), mine))
        return values

    for family, rate in _in_order(rows):
        mine = _rows_of(rows, family, rate)
        if len(mine) >= LEAST_ROWS:
            predict = _kernel(at, rows, family, rate, mine)
            free = {name: how for name, how in KERNELS[family].items() if name not in WARM}
            values = {**predict.fixed, **add(family, rate, predict, free, mine)}
            at = tuned(at, "curves", values, predict.place)
    first = len(rows.names) - len(rows.collective.kind)
    for kind in dict.fromkeys(rows.collective.kind):
        mine = np.flatnonzero([k is kind for k in rows.collective.kind])
        if len(mine) >= LEAST_ROWS:
            predict = _exchange(at, rows.collective, kind, mine)
            add(kind, None, predict, _free(predict.collective, kind), first + mine)
    return tuple(found)


def _in_order(rows: Rows) -> list[tuple[Family, Rate]]:
    """Families at their rates, those with the most rows to themselves first."""
    owners = list(zip(rows.work.family, rows.work.rate, strict=True))
    shared = {
        own: len({o for o, r in zip(owners, rows.owner, strict=True) if r in _rows_of(rows, *own)}) for own in owners
    }
    return sorted(shared, key=lambda own: shared[own])


def _rows_of(rows: Rows, family: Family, rate: Rate) -> Mine:
    mine = [f is family and r is rate for f, r in zip(rows.work.family, rows.work.rate, strict=True)]
    return np.unique(rows.owner[np.array(mine, bool)])


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


def _kernel(machine: Machine, rows: Rows, family: Family, rate: Rate, mine: Mine) -> _Kernels:
    """The rows of a family as a function of its parameters; parts of other families at what the machine has."""
    parts, w = np.flatnonzero(np.isin(rows.owner, mine)), rows.work
    columns = {name: np.asarray(getattr(w, name))[parts] for name in ("flops", "bytes", *SHAPES)}
    work = Work.of([w.family[i] for i in parts], [w.rate[i] for i in parts], **columns)
    place = FAMILIES.index(family), RATES.index(rate)
    return _Kernels(machine, work, np.searchsorted(mine, rows.owner[parts]), FIXED.get(family, {}), place, len(mine))


def _exchange(machine: Machine, collective: Collective, kind: CollectiveKind, mine: Mine) -> _Exchanges:
    columns = {
        name: np.asarray(getattr(collective, name))[mine] for name in ("payload", "size", "stride", *EXCHANGE_SHAPES)
    }
    return _Exchanges(machine, Collective.of([kind] * len(mine), **columns), COLLECTIVES.index(kind))


def _free(collective: Collective, kind: CollectiveKind) -> Frees:
    """Groups of one size say nothing of what further ranks add."""
    if len(set(np.asarray(collective.size).tolist())) > 1 or kind not in AMONG_MANY:
        return EXCHANGES[kind]
    return PROTOCOLS
