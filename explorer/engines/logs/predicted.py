"""What the ledger says of the rows of a start-up log: bytes by rule from the log's counts, or an estimate's range."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from explorer.engines.logs.entries import Entry, Event, Log, Rank
from explorer.engines.startup.parts import Parts
from explorer.residents.estimates import GRAPHS
from explorer.residents.line import Group

_DRAFT = "weights: draft layers"


@dataclass(frozen=True)
class Predicted:
    """Bytes, from `low` to `high` where it is an estimate; `basis` says by what."""

    bytes: int
    low: int
    high: int
    basis: str


def exactly(size: int, basis: str) -> Predicted:
    """Bytes that a rule gives."""
    return Predicted(size, size, size, basis)


def predictions(log: Log, rank: Rank, parts: Parts) -> Mapping[str, Predicted]:
    """By row of `memory_table`, what is predicted of it; rows of which nothing is known are left out."""
    return dict(_predictions(log, rank, parts))


def _predictions(log: Log, rank: Rank, parts: Parts) -> Iterator[tuple[str, Predicted]]:
    draft = parts.line(_DRAFT)
    yield "weights", exactly(parts.weights - draft, "shapes of the config over the layout")
    if draft:
        yield "draft weights", exactly(draft, "shapes of the draft")
    yield "process groups", _estimate(parts, Group.START)
    yield "before weights", Predicted(parts.free, parts.free, parts.free, "chip file, less process groups")
    for line in parts.lines(Group.RESERVE):  # a prefill server has no decode graphs, and a command may switch them off
        if line.name == GRAPHS:
            size = parts.books.size(line)
            yield GRAPHS, Predicted(size, int(size * line.low), ceil(size * line.high), "estimate")
    pool, states = _first(log, Event.KV_POOL, rank), _first(log, Event.STATE_POOL, rank)
    tokens = None if pool is None else pool.count("tokens")
    if tokens is not None and parts.token:
        yield "KV pool", exactly(tokens * parts.token, f"{tokens:,} tokens of {parts.token:,} B")
    slots = None if states is None else states.count("slots")
    if slots is not None and parts.state is not None:
        both = (("conv states", parts.state.conv), ("SSM states", parts.state.recurrent))
        for name, size in both:
            yield name, exactly((slots + 1) * size, f"{slots:,} slots and one, of {size:,} B")


def _first(log: Log, event: Event, rank: Rank) -> Entry | None:
    """The target's own pool comes before that of a draft."""
    return next(iter(log.of(event, rank)), None)


def _estimate(parts: Parts, group: Group) -> Predicted:
    lines = [line for line in parts.books.lines if line.group is group]
    sizes = [(parts.books.size(line), line.low, line.high) for line in lines]
    low, high = (sum(size * bound[i] for size, *bound in sizes) for i in (0, 1))
    return Predicted(sum(size for size, _, _ in sizes), int(low), ceil(high), "estimate")
