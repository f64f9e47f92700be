"""Which stretch of a trace is looked at: one GPU, and of its steps the one of median length."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from explorer.traces.events import Annotation, Events, Kind, Trace, TraceError, shown
from explorer.traces.intervals import covered, overlap

# torch's scheduled profiler writes `ProfilerStep#7`; a step annotation of JAX is mostly called `step`
STEP: Final = r"(?i)^(profiler)?step\W*\d*$"
_EMPTY: Final = 100


@dataclass(frozen=True)
class Step:
    """One step on one GPU: events cut off at its ends, annotations that touch it, times in nanoseconds.

    `lengths`: of all steps found, shortest first; empty where nothing marks steps and the whole trace is one.
    `on_host`: the annotations are the host's, and say when kernels were launched.
    """

    device: int
    start: int
    end: int
    events: Events
    annotations: tuple[Annotation, ...]
    lengths: tuple[int, ...]
    on_host: bool

    @property
    def length(self) -> int:
        return self.end - self.start


def chosen_step(trace: Trace, device: int | None = None, pattern: str | None = None) -> Step:
    """The step of median length (the lower one of two) on a GPU, the busiest if none is named.

    Steps are annotations whose name matches `pattern`, `STEP` if left out: of the GPU's main stream, else of any, else
    of the host. Empty marks are none. TraceError for a GPU that the trace lacks, or a pattern that matches nothing.
    """
    index = _device(trace, device)
    events = trace.events.take(trace.events.device == index)
    main = main_stream(events)
    label = None if main is None else events.streams[main]
    on_gpu = tuple(a for a in trace.annotations if a.device == index)
    on_host = tuple(a for a in trace.annotations if a.device is None)
    places = (tuple(a for a in on_gpu if a.stream == label), on_gpu, on_host)
    marked = next(filter(None, (_marked(place, events, pattern) for place in places)), [])
    if not marked and pattern is not None:
        there = shown(sorted({a.name for a in trace.annotations})) or "none at all"
        raise TraceError(f"step-pattern {pattern!r} matches no annotation with GPU events in it: there is {there}")
    start, end = marked[(len(marked) - 1) // 2] if marked else (int(events.start.min()), int(events.end.max()))
    near = on_gpu or on_host
    return Step(
        device=index,
        start=start,
        end=end,
        events=events.within(start, end),
        annotations=tuple(a for a in near if a.end > start and a.start < end),
        lengths=tuple(last - first for first, last in marked),
        on_host=not on_gpu and bool(near),
    )


def main_stream(events: Events) -> int | None:
    """The stream with most kernel time; None where only copies run."""
    works = events.of(Kind.KERNEL, Kind.COMMUNICATION)
    each = (works & (events.stream == stream) for stream in range(len(events.streams)))
    busy = [covered(events.start[on], events.end[on]) for on in each]
    return int(np.argmax(busy)) if any(busy) else None


def compiled(option: str, pattern: str) -> re.Pattern[str]:
    """A user's regular expression; TraceError where it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TraceError(f"{option} {pattern!r} is no regular expression ({error}): mend it") from None


def _device(trace: Trace, device: int | None) -> int:
    if device is None:
        return trace.devices[0]
    if device not in trace.devices:
        there = ", ".join(map(str, sorted(trace.devices)))
        raise TraceError(f"device {device} runs nothing in this trace: choose one of {there}")
    return device


def _marked(annotations: tuple[Annotation, ...], events: Events, pattern: str | None) -> list[tuple[int, int]]:
    """Start and end of each step, shortest first. What the GPU runs nothing in is an empty mark, and what is shorter
    than a hundredth of the step in which half the time has passed: an engine marks turns that have no work, too."""
    wanted = compiled("step-pattern", pattern or STEP)
    found = sorted({(a.start, a.end) for a in annotations if wanted.search(a.name)}, key=lambda at: at[1] - at[0])
    if not found:
        return []
    start, end = np.array(found, np.int64).T
    busy = overlap(start, end, events.start, events.end) > 0
    start, end = start[busy], end[busy]
    passed = np.cumsum(end - start)
    typical = (end - start)[np.searchsorted(2 * passed, passed[-1])] if len(passed) else 0
    long = (end - start) * _EMPTY > typical
    return list(zip(start[long].tolist(), end[long].tolist(), strict=True))
