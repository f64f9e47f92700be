"""What a calibration may change: one factor for each way in which a kernel or an exchange is limited.

A factor belongs to a family at a rate, or to a kind of exchange, and multiplies the figures that say one thing: how
much of HBM, of the tensor cores, of the link or of the NIC is reached, and how long what is fixed takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hw.curve_files import is_curve_file, read_curve_file
from hw.figures import Figure, Provenance
from hw.machine import CURVE_FIELDS, Curves, Machine
from hw.work import COLLECTIVES, FAMILIES, RATES

FAMILY_PARTS: Final = {
    "bandwidth": ("bandwidth_efficiency",),
    "compute": ("flops_efficiency",),
    "latency": ("latency", "cta_latency", "split_latency", "step_latency"),
}
EXCHANGE_PARTS: Final = {
    "link": ("link_efficiency", "direct_efficiency", "middle_efficiency"),
    "nic": ("nic_efficiency",),
    "latency": (
        *("latency", "hop_latency", "middle_latency", "bulk_latency", "fill_latency"),
        *("round_latency", "row_latency"),
    ),
    "nic_latency": ("nic_latency",),
}
# An 80 % half-width in standard deviations of a normal distribution.
_EIGHTY: Final = 1.2816
# How much further a figure may lie off where nothing was measured: its spread is a guess too.
_GUESS: Final = 2.0
_LEAST: Final = 0.05  # two machines of one kind, and two versions of a kernel, differ by as much whatever a fit says
_ROOM: Final = 1e-9


@dataclass(frozen=True)
class Factor:
    """One factor: `owner` a family (with its rate) or a kind of exchange, `part` a key of the tables above."""

    owner: str
    part: str
    rate: str | None

    @property
    def name(self) -> str:
        """Such as `gemm.bandwidth.fp8` or `all_reduce.link`."""
        return ".".join(filter(None, (self.owner, self.part, self.rate)))

    @property
    def paths(self) -> tuple[str, ...]:
        """The figures of a machine that it multiplies."""
        parts = FAMILY_PARTS if self.rate else EXCHANGE_PARTS
        return tuple(".".join(filter(None, (self.owner, what, self.rate))) for what in parts[self.part])


FACTORS: Final = (
    *(Factor(f, part, rate) for part in FAMILY_PARTS for f in FAMILIES for rate in RATES),
    *(Factor(kind, part, None) for part in EXCHANGE_PARTS for kind in COLLECTIVES),
)


def adjusted(machine: Machine, logs: Float[Array, " factors"]) -> Machine:
    """The machine with every figure multiplied; `logs` are the logarithms of `FACTORS`.

    An efficiency nears 1 and never exceeds it: beyond its value a factor f > 1 counts as exp(b (1 - exp(-ln f / b))),
    with b the logarithm of the room that is left.
    """
    families = len(FAMILIES) * len(RATES) * len(FAMILY_PARTS)
    by_family = logs[:families].reshape(len(FAMILY_PARTS), len(FAMILIES), len(RATES))
    by_kind = logs[families:].reshape(len(EXCHANGE_PARTS), len(COLLECTIVES))
    curves = _moved(machine.curves, FAMILY_PARTS, by_family)
    exchange = _moved(machine.exchange, EXCHANGE_PARTS, by_kind)
    return eqx.tree_at(lambda m: (m.curves, m.exchange), machine, (curves, exchange))


def _moved(curves: Curves, parts: Mapping[str, tuple[str, ...]], logs: Array) -> Curves:
    changed = {}
    for log, fields in zip(logs, parts.values(), strict=True):
        for what in fields:
            value = getattr(curves, what)
            changed[what] = _raised(value, log) if what.endswith("_efficiency") else value * jnp.exp(log)
    return replace(curves, **changed)


def _raised(efficiency: Array, log: Array) -> Array:
    room = jnp.maximum(-jnp.log(jnp.where(efficiency > 0, efficiency, 1.0)), _ROOM)
    up = jnp.maximum(log, 0.0)
    return jnp.minimum(efficiency * jnp.exp(jnp.where(log > 0, -room * jnp.expm1(-up / room), log)), 1.0)


def prior_widths(machine: Machine) -> Float[np.ndarray, " factors"]:
    """Standard deviation of each factor's logarithm before anything was measured here.

    The `spread` of its owner holds 80 % of the seconds: ln(1 + spread) / 1.28. Twice that where one of its figures is
    assumed, since then the spread is a guess as well; never below 5 %.
    """
    return np.array([_width(machine, factor) for factor in FACTORS])


def _width(machine: Machine, factor: Factor) -> float:
    spread = machine.figure(".".join(filter(None, (factor.owner, "spread", factor.rate)))).value
    figures = (machine.figure(path) for path in factor.paths)
    guessed = any(figure.provenance is Provenance.ASSUMED for figure in figures if figure.value)
    return max(float(np.log1p(spread)) / _EIGHTY * (_GUESS if guessed else 1.0), _LEAST)


def changed_figures(before: Machine, after: Machine, factor: Factor) -> Mapping[str, tuple[Figure, float]]:
    """By path, the figures of a factor and their values afterwards; those that are 0 stay so and are left out."""
    figures = {path: before.figure(path) for path in factor.paths}
    return {path: (figure, value_at(after, path)) for path, figure in figures.items() if figure.value}


def value_at(machine: Machine, path: str) -> float:
    """The number that a path of `FACTORS` names, from the machine's arrays."""
    owner, what, *rate = path.split(".")
    if rate:
        table = getattr(machine.curves, what)
        return float(table[FAMILIES.index(owner), RATES.index(rate[0])])
    return float(getattr(machine.exchange, what)[COLLECTIVES.index(owner)])


def base_of(machine: Machine) -> tuple[str, dict[str, Figure]]:
    """The shipped curves that a machine stands on, and the figures that a curve file of the user's puts over them."""
    if is_curve_file(machine.name):
        return read_curve_file(machine.name, CURVE_FIELDS, RATES)
    return machine.sources.chip, {}
