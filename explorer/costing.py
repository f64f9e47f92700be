"""Where the time of a step goes: op by op, stream by stream, along the critical path."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.evaluate import Tables
from explorer.priced import Priced, priced
from explorer.request import Request
from explorer.tabled import Coverage, Tabled
from hw.figures import Provenance
from layouts.layout import Layout
from layouts.op import Stream

HOST_WORK: Final = "scheduling, control sync and launch"


@dataclass(frozen=True)
class OpCost:
    """One op in all layers of a kind. `count` executions in the step; `bound` is the largest part of its time by its
    curve; `table` the op table that its seconds are read from instead, if any."""

    name: str
    layer_kind: str
    stream: Stream
    count: float
    seconds_each: float
    seconds_total: float
    bound: str
    provenance: Provenance
    table: str | None


@dataclass(frozen=True)
class StreamCost:
    """Seconds of the step in which a stream works, stands idle, and adds to the step what no other stream hides."""

    busy: float
    idle: float
    exposed: float


@dataclass(frozen=True)
class Segment:
    """A part of the critical path: work of a kind of layer on its stream, or the main stream's wait for weights."""

    stream: Stream
    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class KindCost:
    """All positions of one kind of layer: work on the main stream, gathers, and waits for them."""

    layer_kind: str
    count: int
    main_seconds: float
    gather_seconds: float
    wait_seconds: float


@dataclass(frozen=True)
class Position:
    """When one position of the step runs, in seconds from its start; None where it gathers nothing."""

    name: str
    layer_kind: str
    start: float
    end: float
    gather_start: float | None
    gather_end: float | None


@dataclass(frozen=True)
class Cost:
    """The time of one step. The `exposed` of all streams, and the segments of the critical path, sum to it."""

    request: Request
    layout: Layout
    step_seconds: float
    step_seconds_range: tuple[float, float]
    ops: tuple[OpCost, ...]
    streams: dict[Stream, StreamCost]
    critical_path: tuple[Segment, ...]
    layer_kinds: tuple[KindCost, ...]
    timeline: tuple[Position, ...]
    op_tables: Coverage | None

    def document(self) -> Document:
        """The `cost/1` document."""
        found = ("step_seconds", "step_seconds_range", "ops", "streams", "critical_path", "layer_kinds", "timeline")
        return {
            **heading(Schema.COST, self.request),
            **layout_entry(self.layout, self.request.model),
            **{name: plain(getattr(self, name)) for name in (*found, "op_tables")},
        }


def cost(request: Request, layout: Layout, tables: Tables | None = None) -> Cost:
    """Price every op of a valid layout and lay the step out in time."""
    return cost_of(priced(request, layout, tables))


def cost_of(found: Priced) -> Cost:
    """The same for a layout that is priced already."""
    kinds = _layer_kinds(found)
    return Cost(
        request=found.request,
        layout=found.layout,
        step_seconds=found.step,
        step_seconds_range=(found.faster, found.slower),
        ops=_ops(found),
        streams=_streams(found),
        critical_path=_critical_path(found, kinds),
        layer_kinds=kinds,
        timeline=_timeline(found),
        op_tables=found.coverage if isinstance(found, Tabled) else None,
    )


def _ops(found: Priced) -> tuple[OpCost, ...]:
    """Ops that take time, longest in all first."""
    step = found.table
    counts = found.counts
    rows = [
        OpCost(
            name=name,
            layer_kind=step.block_names[step.block[i]],
            stream=Stream.GATHER if step.gathers[i] else Stream.MAIN,
            count=float(counts[i]),
            seconds_each=float(found.parts.seconds[i]),
            seconds_total=float(found.parts.seconds[i] * counts[i]),
            bound=found.bound(i),
            provenance=_provenance(found, i),
            table=_table(found, i),
        )
        for i, name in enumerate(step.names)
        if found.parts.seconds[i] * counts[i] > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds_total))


def _table(found: Priced, op: int) -> str | None:
    return found.sources.get(op) if isinstance(found, Tabled) else None


def _provenance(found: Priced, op: int) -> Provenance:
    if _table(found, op) is not None:
        return Provenance.MEASURED
    step, machine = found.table, found.request.machine
    if op < found.kernels:
        return machine.family_provenance(step.families[op], step.rates[op])
    return machine.collective_provenance(step.kinds[op - found.kernels], found.crosses(op))


def _streams(found: Priced) -> dict[Stream, StreamCost]:
    s, step = found.schedule, found.step
    gpu, host = float(s.gpu), float(s.host)
    busy = {Stream.MAIN: float(s.main.sum()), Stream.GATHER: float(s.gather.sum()), Stream.HOST: host}
    # what the main stream does is hidden by nothing on the GPU
    exposed = {Stream.MAIN: busy[Stream.MAIN], Stream.GATHER: float(s.wait.sum()), Stream.HOST: max(0.0, host - gpu)}
    return {stream: StreamCost(busy[stream], step - busy[stream], exposed[stream]) for stream in Stream}


def _layer_kinds(found: Priced) -> tuple[KindCost, ...]:
    s, step = found.schedule, found.table
    sums = [np.bincount(step.sequence, part, len(step.block_names)) for part in (s.main, s.gather, s.wait)]
    counts = np.bincount(step.sequence, minlength=len(step.block_names))
    return tuple(
        KindCost(name, int(counts[k]), float(sums[0][k]), float(sums[1][k]), float(sums[2][k]))
        for k, name in enumerate(step.block_names)
        if counts[k]
    )


def _critical_path(found: Priced, kinds: tuple[KindCost, ...]) -> tuple[Segment, ...]:
    """What must shrink for the step to shrink: the host's work where it is longer, else main work and waits."""
    step = found.step
    if found.on_host:
        return (Segment(Stream.HOST, HOST_WORK, step, 1.0),)
    parts = [(Stream.MAIN, k.layer_kind, k.main_seconds) for k in kinds]
    parts += [(Stream.GATHER, f"wait for the weights of {k.layer_kind}", k.wait_seconds) for k in kinds]
    segments = (Segment(stream, name, t, t / step) for stream, name, t in parts if t > 0)
    return tuple(sorted(segments, key=lambda segment: -segment.seconds))


def _timeline(found: Priced) -> tuple[Position, ...]:
    """The recurrence of `explorer.schedule` unrolled."""
    s, step = found.schedule, found.table
    ends = np.cumsum(s.main + s.wait)
    starts = ends - s.main
    # nothing stands before the first position but its own weights
    issued = np.append(0.0, starts[found.issued[1:]])
    names = _position_names(found)
    return tuple(
        Position(
            name=names[i],
            layer_kind=step.block_names[block],
            start=float(starts[i]),
            end=float(ends[i]),
            gather_start=float(issued[i]) if s.gather[i] > 0 else None,
            gather_end=float(issued[i] + s.gather[i]) if s.gather[i] > 0 else None,
        )
        for i, block in enumerate(step.sequence)
    )


def _position_names(found: Priced) -> list[str]:
    step = found.table
    names = [step.block_names[block] for block in step.sequence]
    for i in step.target:
        names[i] = f"layer {i - step.target.start}"
    return names
