"""Copies between GPUs, in the groups in which they are issued: a gather of weights is one copy from each peer.

Grouped by order on their stream: all copies of a replayed graph share one correlation id (article 000).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from explorer.traces.events import Events, Kind
from explorer.traces.intervals import covered, overlap
from explorer.traces.layers import Layers
from explorer.traces.steps import Step

GAP: Final = 10_000  # ns between copies of one group at most; article 000 sees 3 us
UNKNOWN: Final = ""


@dataclass(frozen=True)
class Groups:
    """Groups of copies, a stream at a time, in order. `start` to `end` includes the copy of a GPU's own part that comes
    before; `bytes` are those from peers, NaN where unknown. `exposed`: time in which a group's copies run and nothing
    else. `kind`: the kind of layer that they are for, UNKNOWN where none is found. `member`: events that belong to one.
    """

    start: Int[np.ndarray, " groups"]
    end: Int[np.ndarray, " groups"]
    copies: Int[np.ndarray, " groups"]
    bytes: Float[np.ndarray, " groups"]
    copy_seconds: Float[np.ndarray, " groups"]
    exposed: Int[np.ndarray, " groups"]
    kind: tuple[str, ...]
    member: Bool[np.ndarray, " events"]

    def __len__(self) -> int:
        return len(self.start)


def find_groups(step: Step, layers: Layers) -> Groups:
    """Consecutive peer copies of a stream with gaps below `GAP`, and the local copy before the first of them. Another
    event between them, or the start of an annotation of theirs, begins a new group."""
    events = step.events
    order = np.lexsort((events.start, events.stream))
    e = events.take(order)
    peer = e.of(Kind.PEER_COPY)
    follows = np.append(False, (e.stream[1:] == e.stream[:-1]) & (e.start[1:] - e.end[:-1] <= GAP))
    marked = _marks(step, e)
    same_mark = np.append(False, marked[1:] == marked[:-1])
    behind_peer = np.append(False, peer[:-1])
    first = np.flatnonzero(peer & ~(follows & same_mark & behind_peer))
    copies = np.diff(np.append(np.cumsum(peer)[first] - 1, peer.sum()))
    last = first + copies - 1
    behind_local = np.append(False, e.of(Kind.LOCAL_COPY)[:-1])
    start = first - (follows & same_mark & behind_local)[first]
    group = _group_of(len(e), start, last)
    member = np.zeros(len(e), bool)
    member[order] = group >= 0
    other = group < 0
    alone = e.span - overlap(e.start, e.end, e.start[other], e.end[other])
    counted, peers = group[~other], group[peer]
    return Groups(
        start=e.start[start],
        end=e.end[last],
        copies=copies,
        bytes=np.bincount(peers, e.bytes[peer], len(first)),
        copy_seconds=np.bincount(peers, e.span[peer], len(first)) / np.maximum(copies, 1) / 1e9,
        exposed=np.bincount(counted, alone[~other], len(first)).astype(np.int64),
        kind=_owners(step, layers, e, start, e.end[last]),
        member=member,
    )


def only_copies(step: Step, groups: Groups) -> int:
    """Time in which copies of groups run and nothing else does."""
    e = step.events
    other = ~groups.member
    return covered(e.start, e.end) - covered(e.start[other], e.end[other])


def _group_of(
    events: int, first: Int[np.ndarray, " groups"], last: Int[np.ndarray, " groups"]
) -> Int[np.ndarray, " events"]:
    """The group of each event, -1 without one. Groups are stretches of the ordered events."""
    begun = np.searchsorted(first, np.arange(events), side="right") - 1
    inside = (begun >= 0) & (np.arange(events) <= np.append(last, -1)[begun])
    return np.where(inside, begun, -1)


def _marks(step: Step, e: Events) -> Int[np.ndarray, " events"]:
    """How many annotations of its own stream began before each event."""
    begun = np.zeros(len(e), np.int64)
    for number, label in enumerate(e.streams):
        starts = np.sort(np.array([a.start for a in step.annotations if a.stream == label], np.int64))
        on = e.stream == number
        begun[on] = np.searchsorted(starts, e.start[on], side="right")
    return begun


def _owners(
    step: Step, layers: Layers, e: Events, first: Int[np.ndarray, " groups"], end: Int[np.ndarray, " groups"]
) -> tuple[str, ...]:
    """The layer that an annotation on the group's stream names, else the first that starts when the group is done."""
    said = {(a.stream, max(a.start, step.start)): a.layer_kind for a in step.annotations if a.stream and a.layer_kind}
    names = [*(layers.kinds[k] for k in layers.kind), UNKNOWN]
    next_layer = np.searchsorted(layers.start, end, side="left")
    streams = (e.streams[s] for s in e.stream[first])
    starts = e.start[first].tolist()
    return tuple(
        said.get((stream, start)) or names[layer]
        for stream, start, layer in zip(streams, starts, next_layer, strict=True)
    )
