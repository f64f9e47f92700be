"""What article 000 reads off a trace, of one step on one GPU: where its wall time goes, layers, copies, kernels."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from explorer.traces.copies import Groups, find_groups, only_copies
from explorer.traces.events import KINDS, Events, Kind, Trace
from explorer.traces.intervals import covered, overlap
from explorer.traces.layers import Layers, find_layers, parse_pattern
from explorer.traces.steps import Step, chosen_step, main_stream

OUTSIDE = "outside of layers"
_NS = 1e-9


@dataclass(frozen=True)
class Steps:
    """The steps that annotations mark, in seconds; `count` is 1 for a trace that is looked at as one."""

    count: int
    median_seconds: float
    low_seconds: float
    high_seconds: float


@dataclass(frozen=True)
class Time:
    """Wall time of the step. `kernels` (all but peer copies), `peer_copies_only` and `idle` sum to it (article 000),
    and so do `union` and `idle`. `communication_only`: only exchanges and peer copies run. `exposed_copies`: only
    groups of copies do, their local copy among them."""

    union_seconds: float
    kernels_seconds: float
    peer_copies_only_seconds: float
    communication_only_seconds: float
    exposed_copies_seconds: float
    idle_seconds: float


@dataclass(frozen=True)
class StreamTime:
    """A stream: the main one has most kernel time."""

    stream: str
    main: bool
    events: int
    busy_seconds: float


@dataclass(frozen=True)
class KindTime:
    """All layers of a kind. `wall`: their own stretches of the main stream, and what in them it is busy (`main`).
    `kernel`: sum of all events but peer copies that start in them, side streams too. `gather`: wall time of the copy
    groups for them, and how much of it nothing hides (`exposed`)."""

    layer_kind: str
    count: int
    wall_seconds: float
    main_seconds: float
    kernel_seconds: float
    gather_seconds: float
    exposed_seconds: float


@dataclass(frozen=True)
class CopyGroups:
    """Groups of peer copies of one shape: medians of seconds and of bytes a second, the whole group's (from its local
    copy to its last) and a single copy's; None where bytes are unknown."""

    layer_kind: str
    count: int
    copies: int
    bytes: float | None
    seconds: float
    bandwidth: float | None
    copy_bandwidth: float | None
    exposed_seconds: float


@dataclass(frozen=True)
class OpTime:
    """All events of one name, whatever number is at its end."""

    name: str
    kind: Kind
    count: int
    seconds_each: float
    seconds_total: float


@dataclass(frozen=True)
class Analysis:
    """One step of a trace taken apart; lists have the longest first."""

    device: int
    step_seconds: float
    steps: Steps
    time: Time
    streams: tuple[StreamTime, ...]
    layers_found_by: str
    layer_kinds: tuple[KindTime, ...]
    copy_groups: tuple[CopyGroups, ...]
    ops: tuple[OpTime, ...]
    on_host: bool

    @property
    def main_seconds(self) -> float:
        """Busy time of the main stream."""
        return next((s.busy_seconds for s in self.streams if s.main), 0.0)


def analyse(
    trace: Trace, device: int | None = None, layer_patterns: tuple[str, ...] = (), step_pattern: str | None = None
) -> Analysis:
    """Take the step of median length apart; TraceError for a device, a pattern or a step that the trace lacks."""
    patterns = [parse_pattern(text) for text in layer_patterns]
    step = chosen_step(trace, device, step_pattern)
    layers = find_layers(step, patterns)
    groups = find_groups(step, layers)
    return Analysis(
        device=step.device,
        step_seconds=step.length * _NS,
        steps=_steps(step),
        time=_time(step, groups),
        streams=_streams(step.events),
        layers_found_by=layers.found_by,
        layer_kinds=_kinds(step, layers, groups),
        copy_groups=_copies(groups),
        ops=_ops(step.events),
        on_host=step.on_host,
    )


def _steps(step: Step) -> Steps:
    lengths = step.lengths or (step.length,)
    return Steps(len(lengths), step.length * _NS, lengths[0] * _NS, lengths[-1] * _NS)


def _time(step: Step, groups: Groups) -> Time:
    e = step.events
    union = covered(e.start, e.end)
    kernels = _covered(e, ~e.of(Kind.PEER_COPY))
    work = _covered(e, ~e.of(Kind.PEER_COPY, Kind.COMMUNICATION))
    parts = (union, kernels, union - kernels, union - work, only_copies(step, groups), step.length - union)
    return Time(*(part * _NS for part in parts))


def _covered(e: Events, chosen: Bool[np.ndarray, " events"]) -> int:
    return covered(e.start[chosen], e.end[chosen])


def _streams(e: Events) -> tuple[StreamTime, ...]:
    main = main_stream(e)
    counts = np.bincount(e.stream, minlength=len(e.streams))
    rows = [
        StreamTime(label, number == main, int(counts[number]), _covered(e, e.stream == number) * _NS)
        for number, label in enumerate(e.streams)
        if counts[number]
    ]
    return tuple(sorted(rows, key=lambda row: (not row.main, -row.busy_seconds)))


def _kinds(step: Step, layers: Layers, groups: Groups) -> tuple[KindTime, ...]:
    """Kinds of layers, and what of the main stream and of the copies belongs to none."""
    e, n = step.events, len(layers.kinds)
    main = main_stream(e)
    on = e.stream == (-1 if main is None else main)
    busy = overlap(layers.start, layers.end, e.start[on], e.end[on])
    spent = e.take(~e.of(Kind.PEER_COPY))
    at = np.searchsorted(layers.start, spent.start, side="right") - 1
    inside = (at >= 0) & (spent.start < np.append(layers.end, step.start)[at])
    kind = np.where(inside, np.append(layers.kind, n)[at], n)  # n: outside of layers
    wall = layers.end - layers.start
    owner = np.array([layers.kinds.index(k) if k in layers.kinds else n for k in groups.kind], np.int64)
    columns = [
        np.append(np.bincount(layers.kind, wall, n), step.length - wall.sum()),
        np.append(np.bincount(layers.kind, busy, n), _covered(e, on) - busy.sum()),
        np.bincount(kind, spent.span, n + 1),
        np.bincount(owner, groups.end - groups.start, n + 1),
        np.bincount(owner, groups.exposed, n + 1),
    ]
    counts = np.append(np.bincount(layers.kind, minlength=n), 0)
    rows = [
        KindTime(name, int(counts[k]), *(float(column[k]) * _NS for column in columns))
        for k, name in enumerate((*layers.kinds, OUTSIDE))
        if counts[k] or any(column[k] > 0 for column in columns[1:])
    ]
    return tuple(sorted(rows, key=lambda row: -row.main_seconds - row.exposed_seconds))


def _copies(groups: Groups) -> tuple[CopyGroups, ...]:
    if not len(groups):
        return ()
    sizes = np.nan_to_num(groups.bytes, nan=-1.0)
    kinds = tuple(dict.fromkeys(groups.kind))
    shapes = np.stack([np.array([kinds.index(k) for k in groups.kind]), groups.copies, sizes], axis=1)
    distinct, which = np.unique(shapes, axis=0, return_inverse=True)
    rows = []
    for number, (kind, copies, size) in enumerate(distinct):
        chosen = which.ravel() == number
        seconds = float(np.median((groups.end - groups.start)[chosen])) * _NS
        each = float(np.median(groups.copy_seconds[chosen]))
        known = size >= 0
        rows.append(
            CopyGroups(
                layer_kind=kinds[int(kind)],
                count=int(chosen.sum()),
                copies=int(copies),
                bytes=float(size) if known else None,
                seconds=seconds,
                bandwidth=float(size) / seconds if known else None,
                copy_bandwidth=float(size) / int(copies) / each if known and each else None,
                exposed_seconds=float(groups.exposed[chosen].sum()) * _NS,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.count * row.seconds))


def _ops(e: Events) -> tuple[OpTime, ...]:
    """By stem and kind: the same name may be a copy within a GPU or between two."""
    stems, stem = e.stems
    pairs, which, counts = np.unique(np.stack([stem, e.kind], axis=1), axis=0, return_inverse=True, return_counts=True)
    total = np.bincount(which.ravel(), e.span, len(pairs)) * _NS
    rows = [
        OpTime(stems[name], KINDS[kind], int(count), float(spent / count), float(spent))
        for (name, kind), count, spent in zip(pairs, counts, total, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds_total))
