"""JAX's own format, `xplane.pb`, through `jax.profiler.ProfileData`.

What XLA writes into it (xla/backends/profiler/gpu/cupti_collector.cc): a plane `/device:GPU:N`, in it a line
`Stream #K(...)` for each stream; copies carry `memcpy_details`. A run on CPUs has no such plane; its ops are events of
the host's plane that carry `hlo_op` and `device_ordinal`, a thread a line.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from explorer.traces.events import Annotation, Events, Kind, Recorder, Trace, TraceError, kind_of_copy, kind_of_kernel

SOURCE: Final = "xplane"
_GPU: Final = re.compile(r"/device:GPU:(\d+)")
_STREAM: Final = re.compile(r"Stream #(\d+)")
_SIZE: Final = re.compile(r"\bsize:(\d+)")
_HOST_PLANE: Final = "/host:CPU"


def read_xplane(path: pathlib.Path) -> Trace:
    """Read a profile; TraceError for a file that is none."""
    from jax.profiler import ProfileData

    try:
        planes = list(ProfileData.from_serialized_xspace(path.read_bytes()).planes)
    except RuntimeError:
        raise TraceError(
            f"{path.name} is no trace: give torch's JSON (.json or .json.gz) or JAX's xplane.pb, whole"
        ) from None
    recorder, annotations = Recorder(), list[Annotation]()
    gpus = [(plane, int(found[1])) for plane in planes if (found := _GPU.search(plane.name))]
    for plane, device in gpus:
        _take_gpu(plane, device, recorder)
    for plane in planes:
        if plane.name == _HOST_PLANE:
            annotations += _host(plane, None if gpus else recorder)
    events = recorder.events()
    return Trace(SOURCE, events if gpus else _innermost(events), tuple(annotations))


def _take_gpu(plane: Any, device: int, recorder: Recorder) -> None:
    for line in plane.lines:
        if not (found := _STREAM.search(line.name)):
            continue  # steps, modules and ops are drawn from the same events once more
        for event in line.events:
            start, end = _times(event)
            kind, size = _gpu_kind(event.name, dict(event.stats))
            recorder.add(event.name, found[1], device, kind, start, end, size)


def _gpu_kind(name: str, stats: Mapping[str, Any]) -> tuple[Kind, float | None]:
    if details := stats.get("memcpy_details"):
        size = _SIZE.search(str(details))
        return kind_of_copy(name), float(size[1]) if size else None
    if "memset_details" in stats:
        return Kind.MEMSET, None
    return kind_of_kernel(name), None


def _host(plane: Any, recorder: Recorder | None) -> Iterator[Annotation]:
    """Annotations of the host; ops too, into the recorder, where the host is what ran them."""
    for line in plane.lines:
        for event in line.events:
            start, end = _times(event)
            stats = dict(event.stats)
            if "hlo_op" not in stats:
                if not event.name.startswith("$"):  # a Python function
                    yield Annotation(event.name, start, end)
            elif recorder is not None:
                device = int(stats.get("device_ordinal", 0))
                recorder.add(event.name, line.name, device, kind_of_kernel(event.name), start, end)


def _times(event: Any) -> tuple[int, int]:
    start = round(event.start_ns)
    return start, start + round(event.duration_ns)


def _innermost(events: Events) -> Events:
    """Without loops and calls, whose time is that of the ops inside them, which follow them on the same thread."""
    order = np.lexsort((-events.end, events.start, events.stream))
    stream, start, end = events.stream[order], events.start[order], events.end[order]
    holds = np.append((stream[1:] == stream[:-1]) & (start[1:] < end[:-1]), False)[: len(order)]
    return events.take(np.sort(order[~holds]))
