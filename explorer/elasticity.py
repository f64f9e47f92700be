"""Which figure the step hangs on: its elasticity in every figure of the machine and of the load.

An elasticity is d ln(step) / d ln(parameter), the derivative of the exact step: rounding has no slope, and each maximum
follows the branch that it took. `active` names what carries it, and the waves in which a kernel runs. The SM count, the
scale-up domain and the host act in whole waves and whole groups, and so have no slope of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Final

import jax
import numpy as np
from jaxtyping import Array, Float

from explorer.costing import HOST_WORK
from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.evaluate import Case, Tables
from explorer.priced import Parts, Timed, parts_of
from explorer.request import Request
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from hw.work import COLLECTIVES, FAMILIES, RATES, CollectiveKind, Family, Rate
from layouts.cut import Cut, cut_of
from layouts.layout import Layout

Mask = Float[np.ndarray, " ops"]
_FAMILY_CURVES: Final = {
    "bandwidth_efficiency": "memory",
    "flops_efficiency": "compute",
    "latency": "latency",
    "cta_latency": "latency",
    "split_latency": "latency",
    "copy_bytes": "latency",
    "step_latency": "chain",
    "contention": "memory",
}
_EXCHANGE_CURVES: Final = {
    "link_efficiency": "link",
    "nic_efficiency": "nic",
    "latency": "latency",
    "nic_latency": "latency",
    "hop_latency": "latency",
    "round_latency": "latency",
    "row_latency": "chain",
    "direct_efficiency": "link",
    "middle_efficiency": "link",
    "middle_latency": "link",
    "bulk_latency": "link",
    "fill_latency": "link",
    "contention": "link",
}
# a field of the load: its option's name, and unit
_LOAD: Final = {
    "context": ("context", "tokens"),
    "chunk": ("chunk", "tokens"),
    "concurrency": ("concurrency", "requests"),
    "verify": ("verify_width", "tokens"),
    "accept": ("accept_length", "tokens"),
}
# of an op's terms, that of a kernel or of an exchange
_COLUMNS: Final = {"latency": 0, "memory": 1, "compute": 2, "link": 1, "nic": 2, "chain": 3}
_SHOWN: Final = 3  # ops that `active` names
_NEGLIGIBLE: Final = 1e-12


@dataclass(frozen=True)
class Row:
    """`elasticity` 0.4: one per cent more of `parameter` makes the step 0.4 % longer. `value` is in `unit`."""

    parameter: str
    value: float
    unit: str
    elasticity: float
    active: str


@dataclass(frozen=True)
class Sensitivity:
    """Rows by falling size. The load's are there even where rounding leaves them no slope."""

    request: Request
    layout: Layout
    step_seconds: float
    rows: tuple[Row, ...]

    def document(self) -> Document:
        """The `sensitivity/1` document."""
        return {
            **heading(Schema.SENSITIVITY, self.request),
            **layout_entry(self.layout, self.request.model),
            "step_seconds": self.step_seconds,
            "rows": plain(self.rows),
        }


def sensitivity(request: Request, layout: Layout, tables: Tables | None = None) -> Sensitivity:
    """Elasticities of a valid layout's step."""
    found, slopes = gradient(request, layout, tables or Tables(request.model, request.prefill, request.holding))
    rows = [*_hardware(found, slopes), *_load(found, slopes)]
    return Sensitivity(request, layout, found.step, tuple(sorted(rows, key=lambda row: -abs(row.elasticity))))


@in_x64
def gradient(request: Request, layout: Layout, tables: Tables) -> tuple[Timed, Case]:
    """The step, and its derivative by every number of the case in the case's own form."""
    (_, parts), slopes = jax.device_get(_step_and_slopes(request.case(), tables, cut_of(layout)))
    return Timed(request, layout, tables, parts), slopes


@kept(COMPILE_TO_RUN_ONCE)
@partial(jax.value_and_grad, has_aux=True)
def _step_and_slopes(case: Case, tables: Tables, cut: Cut) -> tuple[Array, Parts]:
    parts = parts_of(case, tables, cut)
    return parts.schedule.step, parts


def _hardware(found: Timed, slopes: Case) -> Iterator[Row]:
    """Rows of the machine's figures and of the host's work; those of no consequence are left out."""
    weights = critical_weights(found)
    for figure in _figures(jax.device_get(found.request.machine), slopes.machine):
        elasticity = float(figure.slope) * float(figure.value) / found.step
        if abs(elasticity) > _NEGLIGIBLE:
            unit = found.request.machine.figure(figure.path).unit
            active = f"{figure.part} of {_carriers(found, weights * _prices(found, figure))}"
            yield Row(figure.path, float(figure.value), unit, elasticity, active)
    if found.on_host:
        yield Row("host_seconds", float(found.schedule.host), "s", 1.0, HOST_WORK)


@dataclass(frozen=True)
class _Figure:
    """One leaf of a machine: the ops it prices (any family, kind or rate where None), and the part of their time."""

    path: str
    value: Array
    slope: Array
    part: str
    owner: Family | CollectiveKind | None = None
    rate: Rate | None = None
    exchange: bool = False


def _figures(machine: Machine, slope: Machine) -> Iterator[_Figure]:
    yield _Figure("hbm_bandwidth", machine.hbm_bandwidth, slope.hbm_bandwidth, "memory")
    for r, rate in enumerate(RATES):
        yield _Figure(f"peak.{rate}", machine.peak[r], slope.peak[r], "compute", rate=rate)
    yield _Figure("link_bandwidth", machine.link_bandwidth, slope.link_bandwidth, "link", exchange=True)
    yield _Figure("nic_bandwidth", machine.nic_bandwidth, slope.nic_bandwidth, "nic", exchange=True)
    for what, part in _FAMILY_CURVES.items():
        values, slopes = getattr(machine.curves, what), getattr(slope.curves, what)
        for f, family in enumerate(FAMILIES):
            for r, rate in enumerate(RATES):
                yield _Figure(f"{family}.{what}.{rate}", values[f, r], slopes[f, r], part, family, rate)
    for what, part in _EXCHANGE_CURVES.items():
        values, slopes = getattr(machine.exchange, what), getattr(slope.exchange, what)
        for k, kind in enumerate(COLLECTIVES):
            yield _Figure(f"{kind}.{what}", values[k], slopes[k], part, kind, exchange=True)


def critical_weights(found: Timed) -> Mask:
    """Derivative of the step by the time of one execution of each op: how often it is on the critical path.

    Work of the main stream is hidden where a gather that was issued before it is waited for after it, a gather
    wherever it is not waited for, and everything where the host's work is longer.
    """
    table, waits = found.table, found.schedule.wait > 0
    if found.on_host:
        return np.zeros(len(table.names))
    blocks = len(table.block_names)
    uncovered = np.ones(len(waits))
    for position in np.flatnonzero(waits):
        uncovered[found.issued[position] : position] = 0.0
    main = np.bincount(table.sequence, uncovered, blocks)[table.block]
    gathers = np.bincount(table.sequence, waits * found.parts.gathered, blocks)[table.block]
    return np.where(table.gathers > 0, gathers, main)


def _prices(found: Timed, figure: _Figure) -> Mask:
    """Seconds of one execution of each op that the figure prices, on the branch that the op's maximum took."""
    table, terms = found.table, found.parts.terms
    owners = (*table.families, *table.kinds)
    rates = (*table.rates, *[None] * len(table.kinds))
    exchange = np.arange(len(owners)) >= found.kernels
    mask = exchange == figure.exchange
    if figure.owner is not None:
        mask &= np.array([owner == figure.owner for owner in owners])
    if figure.rate is not None:
        mask &= np.array([rate == figure.rate for rate in rates])
    column = _COLUMNS[figure.part]
    if column == 0:
        return mask * terms[:, 0]
    in_turn = np.array([owner is CollectiveKind.COPY_GATHER for owner in owners])
    taken = in_turn | (terms[:, column] >= terms[:, 1:].max(axis=1))
    return mask * taken * terms[:, column]


def _carriers(found: Timed, carried: Mask) -> str:
    """The ops that carry most, each kind of layer's alike under one name, with the waves of those that run in waves."""
    sms = float(found.request.machine.sms)
    by_name: dict[str, float] = {}
    waves: dict[str, int] = {}
    for i, name in enumerate(found.table.names):
        if carried[i] > 0:
            by_name[name] = by_name.get(name, 0.0) + float(carried[i])
            waves[name] = ceil(found.parts.ctas[i] / sms)
    names = sorted(by_name, key=lambda name: -by_name[name])
    shown = [f"{n} ({waves[n]} wave{'s' * (waves[n] > 1)})" if waves[n] else n for n in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(shown) + more


def _load(found: Timed, slopes: Case) -> Iterator[Row]:
    """Rows of the load, with what rounds them: most are constant between two roundings."""
    request, load, v = found.request, found.request.case().load, found.values
    attended = ", ".join(dict.fromkeys(_attention(found))) or "none"
    said = {"context": f"attention over the context: {attended}"}
    if request.prefill:
        said["chunk"] = f"{v['rows']:g} rows a rank"
    else:
        graph = f"{v['requests']:g} requests a group in a graph of {v['batch']:g}"
        said["concurrency"] = f"{graph}; no slope until one of the two grows"
        said["verify"] = f"{v['rows']:g} rows a group, rounded to attn_tp; the slope is that of attention scores"
        said["accept"] = "tokens that a step yields; its time does not depend on them"
    for name, active in said.items():
        value, slope = float(getattr(load, name)), float(getattr(slopes.load, name))
        yield Row(_LOAD[name][0], value, _LOAD[name][1], slope * value / found.step, active)


def _attention(found: Timed) -> Iterator[str]:
    for name, family, seconds in zip(found.table.names, found.table.families, found.parts.seconds, strict=False):
        if family is Family.ATTENTION and seconds > 0:
            yield name
