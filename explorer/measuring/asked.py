"""A curve that is asked of rows: which of its parameters are free, and what these predict of which rows."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from explorer.calibration.measured import Rows
from hw.arithmetic import Exact
from hw.curve_forms import AMONG_MANY, EXCHANGES, FIXED, KERNELS, PROTOCOLS, WARM, Free, tuned
from hw.fitting import Predict
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
Own = tuple[Family, Rate]
LEAST_ROWS: Final = 4  # below which a curve is not fitted, however few its parameters

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
# Of an exchange: what a few rows tell, of which all of its protocols would learn the noise.
_FEW: Final = ("latency", "link_efficiency")


class Asked(NamedTuple):
    """A curve to be fitted: what its free parameters, beside those that are set, predict of which rows."""

    owner: str
    rate: str | None
    predict: Predict
    free: Mapping[str, Free]
    fixed: Mapping[str, float]
    rows: Mine
    seconds: Float[np.ndarray, " rows"]

    @property
    def name(self) -> str:
        """As in `gemm.bf16`, `all_reduce`."""
        return ".".join(filter(None, (self.owner, self.rate)))

    @property
    def needed(self) -> int:
        """Rows that it takes: more than there are free parameters."""
        return max(LEAST_ROWS, len(self.free) + 1)

    @property
    def enough(self) -> bool:
        """Whether there are so many."""
        return len(self.rows) >= self.needed


def rows_needed(owner: Family | CollectiveKind) -> int:
    """Rows that are enough for a curve whatever they tell of it (of an exchange, for one of few parameters)."""
    free = set(_FEW) if isinstance(owner, CollectiveKind) else set(_form(owner)[0]) - set(WARM)
    return max(LEAST_ROWS, len(free) + 1)


def kernels(machine: Machine, rows: Rows, own: Own, mine: Mine) -> Asked:
    """Rows of a family as a function of its parameters; parts of other families at what the machine has."""
    (family, rate), w = own, rows.work
    parts = np.flatnonzero(np.isin(rows.owner, mine))
    columns = {name: np.asarray(getattr(w, name))[parts] for name in ("flops", "bytes", *SHAPES)}
    work = Work.of([w.family[i] for i in parts], [w.rate[i] for i in parts], **columns)
    form, fixed = _form(family)
    predict = _Kernels(machine, work, np.searchsorted(mine, rows.owner[parts]), fixed, place_of(own), len(mine))
    told = {name for name, of in _TOLD_BY.items() if any((columns[shape] > least).any() for shape, least in of)}
    free = {name: how for name, how in form.items() if name in told or name not in (*WARM, *_TOLD_BY)}
    return Asked(family, rate, predict, free, fixed, mine, rows.seconds[mine])


def exchanges(machine: Machine, rows: Rows, kind: CollectiveKind) -> list[Asked]:
    """The same of a kind of exchange, with a few of its parameters free and with all that its rows may tell."""
    mine, c = np.flatnonzero([k is kind for k in rows.collective.kind]), rows.collective
    columns = {name: np.asarray(getattr(c, name))[mine] for name in ("payload", "size", "stride", *EXCHANGE_SHAPES)}
    predict = _Exchanges(machine, Collective.of([kind] * len(mine), **columns), COLLECTIVES.index(kind))
    # groups of one size say nothing of what further ranks add
    one_size = len(set(columns["size"].tolist())) == 1 and kind in AMONG_MANY
    most = PROTOCOLS if one_size else EXCHANGES[kind]
    few = {name: most[name] for name in _FEW}
    places = len(rows.names) - len(c.kind) + mine
    choices = (few,) if few == most else (few, most)
    return [Asked(kind, None, predict, free, {}, places, rows.seconds[places]) for free in choices]


def in_order(rows: Rows) -> list[Own]:
    """Families at their rates, those with the largest share of rows to themselves first."""
    owners = dict.fromkeys(zip(rows.work.family, rows.work.rate, strict=True))
    return sorted(owners, key=lambda own: -len(alone(rows, own)) / len(rows_of(rows, own)))


def alone(rows: Rows, own: Own) -> Mine:
    """The rows in which no other family has a part."""
    return np.setdiff1d(rows_of(rows, own), rows.owner[~parts_of(rows, own)])


def rows_of(rows: Rows, own: Own) -> Mine:
    """The rows in which it has a part."""
    return np.unique(rows.owner[parts_of(rows, own)])


def parts_of(rows: Rows, own: Own) -> Bool[np.ndarray, " kernels"]:
    """Which kernels of the rows are its own."""
    return np.array([of == own for of in zip(rows.work.family, rows.work.rate, strict=True)], bool)


def place_of(own: Own) -> tuple[int, int]:
    """Where its curve is in a machine's."""
    return FAMILIES.index(own[0]), RATES.index(own[1])


def _form(family: Family) -> tuple[Mapping[str, Free], Mapping[str, float]]:
    return _OURS.get(family, (KERNELS[family], FIXED.get(family, {})))


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
