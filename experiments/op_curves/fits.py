"""A group of rows fitted with the formulas of `hw.time`: the machine's own curve, with parameters put in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments.op_curves.rows import Group
from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.curve_forms import EXCHANGES, FIXED, HOSTS, KERNELS, WARM, Free, tuned
from hw.figures import read_chip
from hw.fitting import Predict, Quality, fit
from hw.machine import Machine, load_machine
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

_CLIFF: Final = 8.0  # exponent with which a working set leaves the cache


@dataclass(frozen=True)
class Fitted:
    """A group with the parameters of its curve; those of the benchmark's warm cache are left out."""

    group: Group
    values: Mapping[str, float]
    quality: Quality

    @property
    def path(self) -> tuple[str, str | None]:
        """Family or kind, and rate, that the curve belongs to."""
        return self.group.family, self.group.rate or None


@in_x64
def fitted(group: Group, before: Mapping[str, float] | None = None) -> Fitted:
    """Fit one group. Parameters that its table does not tell stay as an earlier table of the same curve gave them
    (`before`), else as the chip's data files have them."""
    machine = load_machine(group.chip).anonymous()
    exchange = group.family in COLLECTIVES
    free, fixed = _exchange_form(group) if exchange else _kernel_form(group)
    if before and exchange:
        machine = tuned(machine, "exchange", before, (COLLECTIVES.index(CollectiveKind(group.family)),))
    priced = _exchange(machine, group) if exchange else _kernel(machine, group, fixed)
    amount = group.features["payload"] * group.features["size"] if exchange else _amount(machine, group)
    values, quality = fit(priced, free, group.seconds, group.shape, amount)
    kept = {name: value for name, value in values.items() if name not in WARM}
    return Fitted(group, {**fixed, **kept}, quality)


def _kernel_form(group: Group) -> tuple[Mapping[str, Free], dict[str, float]]:
    family = Family(group.family)
    warm = group.features.get("resident", np.zeros(1)).any()
    free = {name: how for name, how in KERNELS[family].items() if warm or name not in WARM}
    return free, {**FIXED.get(family, {}), **group.fixed}


def _exchange_form(group: Group) -> tuple[Mapping[str, Free], dict[str, float]]:
    several_hosts = group.features.get("outside", np.zeros(1)).any()
    return (HOSTS if several_hosts else EXCHANGES[CollectiveKind(group.family)]), dict(group.fixed)


def _amount(machine: Machine, group: Group) -> np.ndarray:
    """How much a row asks for: seconds at the datasheet, memory and arithmetic together."""
    peak = float(machine.peak[RATES.index(Rate(group.rate))])
    return group.features["bytes"] / float(machine.hbm_bandwidth) + group.features["flops"] / peak


def _kernel(machine: Machine, group: Group, fixed: Mapping[str, float]) -> Predict:
    family, rate = Family(group.family), Rate(group.rate)
    place = FAMILIES.index(family), RATES.index(rate)
    f = {name: jnp.asarray(column) for name, column in group.features.items()}
    count = len(group.seconds)
    resident, l2 = f.get("resident", jnp.zeros(count)), read_chip(group.chip)["l2_bytes"].value

    def predict(values: Mapping[str, Array]) -> Array:
        own = {name: value for name, value in {**fixed, **values}.items() if name not in WARM}
        here = tuned(machine, "curves", own, place)
        hit = 1.0 / (1.0 + (resident / (values.get("cache", jnp.ones(())) * l2)) ** _CLIFF)
        spared = values.get("reuse", jnp.zeros(())) * hit * resident
        shapes = {name: f[name] for name in SHAPES if name in f}
        work = Work.of([family] * count, [rate] * count, f["flops"], f["bytes"] - spared, **shapes)
        return compute_seconds(Exact(), here, work)

    return predict


def _exchange(machine: Machine, group: Group) -> Predict:
    kind = CollectiveKind(group.family)
    f = {name: jnp.asarray(column) for name, column in group.features.items()}
    shapes = {name: f[name] for name in EXCHANGE_SHAPES if name in f}
    asked = Collective.of([kind] * len(group.seconds), f["payload"], f["size"], **shapes)

    def predict(values: Mapping[str, Array]) -> Array:
        return collective_seconds(Exact(), tuned(machine, "exchange", values, (COLLECTIVES.index(kind),)), asked)

    return predict
