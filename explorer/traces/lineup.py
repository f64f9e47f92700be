"""A measured step beside the prediction for it."""

from collections.abc import Iterator
from dataclasses import dataclass

from explorer.costing import Cost, KindCost
from explorer.traces.analysis import Analysis, KindTime
from layouts.op import Stream

WHOLE = "step"


@dataclass(frozen=True)
class Line:
    """One quantity of the step as a whole or of one kind of layer, in seconds (`layers`: how many of the kind). None on
    the side that does not know the kind; `ratio` is measured over predicted."""

    part: str
    quantity: str
    measured: float | None
    predicted: float | None
    ratio: float | None


def line_up(found: Analysis, predicted: Cost) -> tuple[Line, ...]:
    """The step as a whole, then kinds of layers, which are matched by name; the prediction's come first. What is zero
    or unknown on both sides of a kind is left out."""
    lines = list(_whole(found, predicted))
    measured = {kind.layer_kind: kind for kind in found.layer_kinds}
    known = {kind.layer_kind: kind for kind in predicted.layer_kinds}
    for name in dict.fromkeys((*known, *measured)):
        lines += _kind(name, measured.get(name), known.get(name))
    return tuple(lines)


def named_alike(found: Analysis, predicted: Cost) -> bool:
    """Whether any kind of layer is on both sides."""
    return bool({k.layer_kind for k in found.layer_kinds} & {k.layer_kind for k in predicted.layer_kinds})


def _whole(found: Analysis, predicted: Cost) -> Iterator[Line]:
    step, streams = predicted.step_seconds, predicted.streams
    gather = sum(kind.gather_seconds for kind in found.layer_kinds)
    exposed = streams[Stream.GATHER].exposed
    yield _line(WHOLE, "length", found.step_seconds, step)
    yield _line(WHOLE, "main stream", found.main_seconds, streams[Stream.MAIN].busy)
    yield _line(WHOLE, "gathers", gather, streams[Stream.GATHER].busy)
    yield _line(WHOLE, "exposed gathers", found.time.exposed_copies_seconds, exposed)
    yield _line(WHOLE, "idle", found.time.idle_seconds, streams[Stream.HOST].exposed)


def _kind(name: str, measured: KindTime | None, predicted: KindCost | None) -> Iterator[Line]:
    pairs = (
        ("layers", "count", "count"),
        ("main stream", "main_seconds", "main_seconds"),
        ("gathers", "gather_seconds", "gather_seconds"),
        ("exposed gathers", "exposed_seconds", "wait_seconds"),
    )
    for quantity, ours, theirs in pairs:
        line = _line(name, quantity, getattr(measured, ours, None), getattr(predicted, theirs, None))
        if line.measured or line.predicted:
            yield line


def _line(part: str, quantity: str, measured: float | None, predicted: float | None) -> Line:
    ratio = measured / predicted if measured is not None and predicted else None
    return Line(part, quantity, measured, predicted, ratio)
