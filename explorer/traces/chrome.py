"""Chrome's trace format, which torch's profiler writes and chrome://tracing and Perfetto show: reading and writing.

Format: "Trace Event Format" (Google, 2016), complete events `ph: X` in microseconds. What torch puts in it: Kineto,
libkineto/src/output_json.cpp and CuptiActivity.cpp (`cat` kernel, gpu_memcpy, gpu_memset, gpu_user_annotation,
user_annotation; `args` stream, device, bytes; copies between GPUs have fromDevice, inDevice, toDevice instead).

A file is read piece by piece, and of each event only its columns are kept.
"""

import gzip
import json
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import IO, Any, Final

import numpy as np

from explorer.traces.events import KINDS, Annotation, Kind, Recorder, Trace, TraceError, kind_of_copy, kind_of_kernel

SOURCE: Final = "Chrome JSON"
_PIECE: Final = 1 << 22  # characters read at a time
_LONGEST: Final = 1 << 26  # characters of one event, beyond which it is taken for junk
_LATEST: Final = 4 * 10**15  # microseconds since 1970: beyond it, a sum of two is no 64-bit number of nanoseconds
_LIST: Final = re.compile(r'"traceEvents"\s*:\s*\[')
_SPACE: Final = re.compile(r"[\s,]*")
_HOST: Final = 1 << 20  # process that holds the host's tracks, beyond any GPU's number
Document = dict[str, Any]


def read_chrome(path: pathlib.Path) -> Trace:
    """Read a trace, gzipped or not; TraceError for what is none, or is cut short."""
    recorder, annotations = Recorder(), list[Annotation]()
    try:
        with _opened(path) as file:
            for number, event in enumerate(_events(file, path.name)):
                _take(event, recorder, annotations, f"{path.name}: event {number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path.name} is cut short or damaged ({error}): copy or record it again") from None
    return Trace(SOURCE, recorder.events(), tuple(annotations))


def _opened(path: pathlib.Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    opener = gzip.open if packed else open
    return opener(path, "rt", encoding="utf-8", errors="replace")  # pyright: ignore[reportReturnType]


def _events(file: IO[str], name: str) -> Iterator[Document]:
    """The objects of the list of events, one by one."""
    decoder = json.JSONDecoder(parse_float=Decimal)
    text, at = _start(file, name), 0
    while True:
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        if text.startswith("]", at):
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            more = file.read(_PIECE)
            if not more:
                raise TraceError(
                    f"{name} ends or breaks in the middle of its events: copy or record it again"
                ) from None
            if len(text) - at > _LONGEST:
                raise TraceError(f"{name} holds something that is no event: give a trace in Chrome's format") from None
            text, at = text[at:] + more, 0
        else:
            if isinstance(event, dict):
                yield event


def _start(file: IO[str], name: str) -> str:
    """The text behind the bracket that opens the list of events."""
    text = file.read(_PIECE)
    if text.lstrip().startswith("["):
        return text.lstrip()[1:]
    while text:
        if found := _LIST.search(text):
            return text[found.end() :]
        more = file.read(_PIECE)
        text = text[-64:] + more if more else ""
    raise TraceError(f"{name} is no trace: it has no list of traceEvents; give torch's JSON or JAX's xplane.pb")


_KINDS: Final[Mapping[str, Kind | None]] = {  # by category; None: by the event's name
    "kernel": None,
    "gpu_memcpy": None,
    "gpu_memset": Kind.MEMSET,
}
_ANNOTATIONS: Final = ("gpu_user_annotation", "user_annotation")


def _take(event: Document, recorder: Recorder, annotations: list[Annotation], where: str) -> None:
    category = event.get("cat")
    if event.get("ph") != "X" or not isinstance(category, str) or category not in (*_KINDS, *_ANNOTATIONS):
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    name = _text(event.get("name", ""))
    start = _nanoseconds(event.get("ts"), where)
    end = start + _nanoseconds(event.get("dur", 0), where)
    if end < start:
        raise TraceError(f"{where} ends before it starts: record the trace again")
    device = _device(args, event.get("pid"))
    stream = _text(args.get("stream", event.get("tid")))
    layer_kind = _text(args["layer_kind"]) if "layer_kind" in args else None
    if category == "user_annotation":
        annotations.append(Annotation(name, start, end, layer_kind=layer_kind))
    elif category == "gpu_user_annotation":
        annotations.append(Annotation(name, start, end, device, stream, layer_kind))
    else:
        size = args.get("bytes")
        known = float(size) if isinstance(size, int | Decimal) and 0 <= size < 2**63 else None
        recorder.add(name, stream, device, _kind(category, name, args), start, end, known)


def _kind(category: str, name: str, args: Document) -> Kind:
    if args.get("kind") in KINDS:  # said by the trace itself: one of ours
        return Kind(args["kind"])
    if category == "gpu_memcpy":
        return kind_of_copy(name, args.get("fromDevice") != args.get("toDevice"))
    return _KINDS[category] or kind_of_kernel(name)


def _device(args: Document, process: object) -> int:
    """The GPU that ran an event; torch gives each a process of its number."""
    named = (args.get("device"), args.get("inDevice"), process)
    return next((n for n in named if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _HOST), 0)


def _text(value: object) -> str:
    """A word as it can be printed; JSON may hold halves of characters."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _nanoseconds(microseconds: object, where: str) -> int:
    if isinstance(microseconds, int | Decimal) and -_LATEST < microseconds < _LATEST:
        return round(microseconds * 1000)
    raise TraceError(f"{where} has no usable time ({str(microseconds)[:20]!r}): record the trace again")


def chrome_document(trace: Trace, about: Document | None = None) -> Document:
    """A trace as Chrome and Perfetto read it: a process a GPU with a track a stream, one for the host. `about` goes
    into its `otherData`."""
    e = trace.events
    tracks = {label: number for number, label in enumerate(e.streams)}
    listed = [
        _complete(a.name, a.start, a.end, a.device, tracks.get(a.stream or ""), _said(a)) for a in trace.annotations
    ]
    sizes = [None if np.isnan(size) else int(size) for size in e.bytes]
    columns = [column.tolist() for column in (e.name, e.stream, e.device, e.kind, e.start, e.end)]
    for name, stream, device, kind, start, end, size in zip(*columns, sizes, strict=True):
        args = {"stream": e.streams[stream], "device": device, "kind": str(KINDS[kind])}
        listed.append(
            _complete(e.names[name], start, end, device, stream, args | ({} if size is None else {"bytes": size}))
            | {"cat": _category(KINDS[kind])}
        )
    return {"traceEvents": [*_tracks(trace, tracks), *listed], "displayTimeUnit": "ms", "otherData": about or {}}


def write_chrome(document: Document, path: pathlib.Path) -> None:
    """Write a trace, gzipped where the name ends in .gz."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))  # the same trace is the same file
    else:
        path.write_text(text, encoding="utf-8")


def _said(annotation: Annotation) -> Document:
    said = {"stream": annotation.stream, "layer_kind": annotation.layer_kind}
    return {key: value for key, value in said.items() if value is not None}


def _complete(name: str, start: int, end: int, device: int | None, track: int | None, args: Document) -> Document:
    category = "user_annotation" if device is None else "gpu_user_annotation"
    process = _HOST if device is None else device
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": track or 0, **times, "args": args}


def _category(kind: Kind) -> str:
    if kind in (Kind.PEER_COPY, Kind.LOCAL_COPY):
        return "gpu_memcpy"
    return "gpu_memset" if kind is Kind.MEMSET else "kernel"


def _tracks(trace: Trace, tracks: Mapping[str, int]) -> list[Document]:
    """Names of processes and tracks, in the order in which they are to be shown."""
    used = {(device, stream) for device, stream in zip(trace.events.device, trace.events.stream, strict=True)}
    found = [_named("process_name", f"GPU {device}", device) for device in sorted(trace.devices)]
    found += [
        _named("thread_name", label, int(device), track)
        for label, track in tracks.items()
        for device, stream in sorted(used)
        if stream == track
    ]
    if any(a.device is None for a in trace.annotations):
        found += [_named("process_name", "host", _HOST), _named("thread_name", "host", _HOST, 0)]
    return found


def _named(what: str, name: str, process: int, track: int = 0) -> Document:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}
