"""The predicted step as a trace: what a profiler would have seen, had the step been as the cost model says."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from explorer.costing import HOST_WORK, OpCost, Position, cost_of
from explorer.documents import Document, layout_entry, versions
from explorer.priced import Priced
from explorer.traces.chrome import chrome_document
from explorer.traces.events import Annotation, Kind, Recorder, Trace
from hw.work import CollectiveKind, Family
from layouts.blocks import step_blocks
from layouts.op import Stream

STREAMS: Final = {Stream.MAIN: "main", Stream.GATHER: "weight gather"}
SOURCE: Final = "prediction"
STEP_NAME: Final = "step"
_GPU: Final = 0


def predicted_document(found: Priced) -> Document:
    """The step in Chrome's format, to be shown by chrome://tracing or Perfetto and read by `explorer.traces`."""
    request = found.request
    about = {
        "model": request.model.name,
        "hardware": request.machine.name,
        "layout": layout_entry(found.layout, request.model)["layout_text"],
        "versions": versions(),
    }
    return chrome_document(predicted_trace(found), about)


def predicted_trace(found: Priced) -> Trace:
    """A priced step as events of one GPU: on the main stream the ops of each layer, on another the gathers of weights,
    each named by an annotation that holds them; the host's work beside. Times are rounded to nanoseconds."""
    recorder, annotations = Recorder(), list[Annotation]()
    ops = _Ops(found)
    length = _ns(found.step)
    annotations.append(Annotation(STEP_NAME, 0, length, _GPU, STREAMS[Stream.MAIN]))
    for position in ops.cost.timeline:
        for stream, start, end in _stretches(position):
            name = position.name if stream is Stream.MAIN else f"weights of {position.name}"
            place = (_GPU, STREAMS[stream], position.layer_kind)
            annotations.append(Annotation(name, _ns(start), _ns(end), *place))
            ops.lay(recorder, position.layer_kind, stream, start, end)
    annotations.append(Annotation(HOST_WORK, 0, _ns(float(found.schedule.host))))
    return Trace(SOURCE, recorder.events(), tuple(annotations))


def _stretches(position: Position) -> Iterator[tuple[Stream, float, float]]:
    yield Stream.MAIN, position.start, position.end
    if position.gather_start is not None and position.gather_end is not None:
        yield Stream.GATHER, position.gather_start, position.gather_end


class _Ops:
    """The ops of each kind of layer and stream, in the order in which they run."""

    def __init__(self, found: Priced):
        self.cost, self.table = cost_of(found), found.table
        self._sent = found.parts.sent
        costs = {(op.layer_kind, op.name): op for op in self.cost.ops}
        self._of: dict[tuple[str, Stream], list[tuple[OpCost, int]]] = {}
        for index in _in_order(found):
            kind = self.table.block_names[self.table.block[index]]
            op = costs.get((kind, self.table.names[index]))
            if op is not None:
                self._of.setdefault((kind, op.stream), []).append((op, index))

    def lay(self, recorder: Recorder, layer_kind: str, stream: Stream, start: float, end: float) -> None:
        """One behind the other from `start` to `end`, all stretched alike where the schedule gives them more time than
        each takes alone."""
        ops = self._of.get((layer_kind, stream), [])
        done = np.cumsum([0.0, *(op.seconds_each for op, _ in ops)])
        edges = [_ns(start + (end - start) * part) for part in done / max(done[-1], 1e-30)]
        for (op, index), first, last in zip(ops, edges, edges[1:], strict=False):
            sent = float(self._sent[index])
            recorder.add(op.name, STREAMS[stream], _GPU, self._kind(index), first, last, sent or None)

    def _kind(self, index: int) -> Kind:
        """An exchange that copy engines do not make is a kernel."""
        if index >= len(self.table.families):
            copies = self.table.kinds[index - len(self.table.families)] is CollectiveKind.COPY_GATHER
            return Kind.PEER_COPY if copies else Kind.COMMUNICATION
        return Kind.LOCAL_COPY if self.table.families[index] is Family.COPY else Kind.KERNEL


def _in_order(found: Priced) -> list[int]:
    """Ops as their blocks list them; the table has kernels before exchanges."""
    blocks = step_blocks(found.request.model, found.request.prefill, found.request.program).blocks
    kernels = [(b, place) for b, block in enumerate(blocks) for place, op in enumerate(block.ops) if op.family]
    exchanges = [(b, place) for b, block in enumerate(blocks) for place, op in enumerate(block.ops) if op.collective]
    places = [*kernels, *exchanges]
    return sorted(range(len(places)), key=places.__getitem__)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
