"""A trace as columns: one row an event that a GPU ran, whatever profiler wrote it down, and the annotations beside."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hw.errors import MeshwrightError


class TraceError(MeshwrightError):
    """A file that is no trace, or a trace that does not hold what was asked of it."""


class Kind(StrEnum):
    """What an event does. A peer copy is made by a copy engine between two GPUs; communication is a kernel's."""

    KERNEL = "kernel"
    COMMUNICATION = "communication"
    PEER_COPY = "peer copy"
    LOCAL_COPY = "local copy"
    MEMSET = "memset"


KINDS: Final = tuple(Kind)

# Names by which libraries call kernels that exchange data: NCCL, DeepEP, NVSHMEM, the engines' own all-reduce kernels
# (`cross_device_reduce`, `allreduce_fusion`, multimem), and XLA's collectives (`all-gather.3`).
_EXCHANGES: Final = re.compile(
    r"nccl|deep_?ep|nvshmem|multimem|cross_device_reduce|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter"
    r"|all[-_]?to[-_]?all|collective[-_]permute",
    re.IGNORECASE,
)
_PEER: Final = re.compile(r"PtoP|P2P|Peer", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"([._]\d+)+$")
_COPIES: Final = re.compile(r"memcpy", re.IGNORECASE)  # NCCL's copy of a rank's own slice is a kernel of that name


def kind_of_kernel(name: str) -> Kind:
    """What a kernel does, by its name."""
    if _EXCHANGES.search(name):
        return Kind.COMMUNICATION
    return Kind.LOCAL_COPY if _COPIES.search(name) else Kind.KERNEL


def kind_of_copy(name: str, between: bool = False) -> Kind:
    """What a copy does, by its name; `between`: the profiler says that its ends are two GPUs."""
    return Kind.PEER_COPY if between or _PEER.search(name) else Kind.LOCAL_COPY


@dataclass(frozen=True)
class Events:
    """Events in order of start. `name` and `stream` point into `names` and `streams`, `kind` into `KINDS`; `start` and
    `end` are nanoseconds, `bytes` is NaN where the profiler does not say."""

    names: tuple[str, ...]
    streams: tuple[str, ...]
    name: Int[np.ndarray, " events"]
    stream: Int[np.ndarray, " events"]
    device: Int[np.ndarray, " events"]
    kind: Int[np.ndarray, " events"]
    start: Int[np.ndarray, " events"]
    end: Int[np.ndarray, " events"]
    bytes: Float[np.ndarray, " events"]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def stems(self) -> tuple[tuple[str, ...], Int[np.ndarray, " events"]]:
        """Names without the numbers that a compiler gives to each of its like (`loop_fusion.12`), and each event's."""
        stems = [_NUMBERED.sub("", name) or name for name in self.names]
        distinct = {stem: number for number, stem in enumerate(dict.fromkeys(stems))}
        return tuple(distinct), np.array([distinct[stem] for stem in stems], np.int64)[self.name]

    @property
    def span(self) -> Int[np.ndarray, " events"]:
        """Nanoseconds that each event takes."""
        return self.end - self.start

    def of(self, *kinds: Kind) -> Bool[np.ndarray, " events"]:
        """Which events are of these kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])

    def take(self, chosen: Bool[np.ndarray, " events"] | Int[np.ndarray, " chosen"]) -> "Events":
        """Some of the events."""
        columns = ("name", "stream", "device", "kind", "start", "end", "bytes")
        return replace(self, **{column: getattr(self, column)[chosen] for column in columns})

    def within(self, start: int, end: int) -> "Events":
        """What runs between two times, cut off at both."""
        inside = self.take((self.end > start) & (self.start < end))
        return replace(inside, start=np.maximum(inside.start, start), end=np.minimum(inside.end, end))


class Annotation(NamedTuple):
    """A named stretch of time, in nanoseconds. On a GPU's stream, or (without device and stream) on the host.
    `layer_kind`: the kind of layer that it says it is, if it does."""

    name: str
    start: int
    end: int
    device: int | None = None
    stream: str | None = None
    layer_kind: str | None = None


@dataclass(frozen=True)
class Trace:
    """What a profiler wrote down. `source`: which format it came in."""

    source: str
    events: Events
    annotations: tuple[Annotation, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """GPUs that ran something, the busiest first."""
        found, counts = np.unique(self.events.device, return_counts=True)
        return tuple(int(device) for device in found[np.argsort(-counts, kind="stable")])


class Recorder:
    """Events one after another, packed as they come: some forty bytes each."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._whole = {column: array("q") for column in ("name", "stream", "device", "kind", "start", "end")}
        self._bytes = array("d")

    def add(
        self, name: str, stream: str, device: int, kind: Kind, start: int, end: int, size: float | None = None
    ) -> None:
        """One event; times in nanoseconds. OverflowError beyond 64 bits."""
        numbers = (
            self._names.setdefault(name, len(self._names)),
            self._streams.setdefault(stream, len(self._streams)),
            device,
            KINDS.index(kind),
            start,
            end,
        )
        for column, number in zip(self._whole.values(), numbers, strict=True):
            column.append(number)
        self._bytes.append(np.nan if size is None else size)

    def events(self) -> Events:
        """What was recorded, in order of start."""
        columns = {name: np.array(column, np.int64) for name, column in self._whole.items()}
        made = Events(tuple(self._names), tuple(self._streams), **columns, bytes=np.array(self._bytes, np.float64))
        return made.take(np.lexsort((made.stream, made.start)))


def shown(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, for a message."""
    cut = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:most]]
    return ", ".join(map(repr, cut)) + (", ..." if len(names) > most else "")
