"""Two layouts side by side, as article 000 does it: what is conserved, what is not, what moved; then time and memory.

Conserved: bytes of state that go with requests, wherever these run. Not conserved: weights, which each card reads
again. Moved: communication, on the critical path or beside it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import inf, log

from explorer.costing import Cost, cost_of
from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.evaluate import Tables
from explorer.ledger import Ledger, ledger_of
from explorer.priced import priced
from explorer.request import Request
from explorer.residents.division import Division
from explorer.traffic import Matter, Moved, moved
from layouts.layout import Layout
from layouts.op import Stream

_CAUSES = 3  # quantities that a cause names


class Class(StrEnum):
    """What kind of figure a row compares; bytes are those of one card and step."""

    CONSERVED = "conserved"
    NOT_CONSERVED = "not conserved"
    MOVED = "moved"
    TIME = "time"
    MEMORY = "memory"


@dataclass(frozen=True)
class Row:
    """`difference` = b - a. `cause`: the quantities behind it, as a / b, or the op that makes most of it."""

    row_class: Class
    name: str
    a: float
    b: float
    unit: str
    cause: str = ""

    @property
    def difference(self) -> float:
        return self.b - self.a

    def entry(self) -> Document:
        """As the document holds it."""
        return {
            "class": str(self.row_class),
            **{key: plain(getattr(self, key)) for key in ("name", "a", "b", "difference", "unit", "cause")},
        }


@dataclass(frozen=True)
class Comparison:
    """Rows by class."""

    request: Request
    a: Layout
    b: Layout
    rows: tuple[Row, ...]

    def of(self, row_class: Class) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.row_class is row_class)

    def document(self) -> Document:
        """The `compare/1` document."""
        return {
            **heading(Schema.COMPARE, self.request),
            "a": layout_entry(self.a, self.request.model),
            "b": layout_entry(self.b, self.request.model),
            "rows": [row.entry() for row in self.rows],
        }


def compare(request: Request, a: Layout, b: Layout) -> Comparison:
    """Compare two valid layouts of one request."""
    tables = Tables(request.model, request.prefill, request.holding)
    sides = tuple(_Side(request, layout, tables) for layout in (a, b))
    rows = (*_by_matter(*sides), *_moved(*sides), *_time(*sides), *_memory(*sides))
    return Comparison(request, a, b, rows)


class _Side:
    """One of the two layouts, everything about it computed once."""

    def __init__(self, request: Request, layout: Layout, tables: Tables):
        self.found = priced(request, layout, tables)
        self.books = Division(self.found)

    @cached_property
    def cost(self) -> Cost:
        return cost_of(self.found)

    @cached_property
    def ledger(self) -> Ledger:
        return ledger_of(self.found)

    @cached_property
    def moved(self) -> tuple[Moved, ...]:
        return tuple(moved(self.found, self.books.numbers))

    @cached_property
    def values(self) -> Mapping[str, float]:
        """Quantities by name, those of the ledger among them."""
        pools = {"slots": float(self.books.slots), "global_kv_tokens": float(self.books.kv_tokens * self.books.dcp)}
        return {**self.found.values, **pools}

    def bytes(self, matter: Matter, key: str) -> dict[str, float]:
        """Bytes of a matter, summed by op or by family."""
        sums: dict[str, float] = {}
        for part in self.moved:
            if part.matter is matter:
                sums[getattr(part, key)] = sums.get(getattr(part, key), 0.0) + part.bytes
        return sums

    def sent(self, stream: Stream) -> dict[str, float]:
        """Bytes that the exchanges of a stream send, by name."""
        table, gather = self.found.table, stream is Stream.GATHER
        sums: dict[str, float] = {}
        for i in range(self.found.kernels, len(table.names)):
            if bool(table.gathers[i]) == gather:
                size = float(self.found.parts.sent[i] * self.found.counts[i])
                sums[table.names[i]] = sums.get(table.names[i], 0.0) + size
        return sums

    def seconds(self, names: Iterable[str]) -> float:
        """Seconds of the step that the ops of these names take."""
        wanted = set(names)
        return sum(op.seconds_total for op in self.cost.ops if op.name in wanted)


def _by_matter(a: _Side, b: _Side) -> Iterator[Row]:
    for matter in (Matter.KV, Matter.STATE):
        for op, x, y in _both(a.bytes(matter, "op"), b.bytes(matter, "op")):
            yield _row(Class.CONSERVED, f"{matter}: {op}", (x, y), "bytes", _why(a, b, x, y, matter, op))
    for family, x, y in _both(a.bytes(Matter.WEIGHTS, "family"), b.bytes(Matter.WEIGHTS, "family")):
        yield _row(
            Class.NOT_CONSERVED, f"{Matter.WEIGHTS}: {family}", (x, y), "bytes", _why(a, b, x, y, Matter.WEIGHTS)
        )
    received = [sum(side.sent(Stream.GATHER).values()) for side in (a, b)]
    yield _row(Class.NOT_CONSERVED, "staging written by the gather", received, "bytes", _gathers(a, b))
    for matter in (Matter.STAGING, Matter.ACTIVATIONS):
        x, y = (sum(side.bytes(matter, "op").values()) for side in (a, b))
        yield _row(Class.NOT_CONSERVED, str(matter), (x, y), "bytes", _why(a, b, x, y, matter))


def _moved(a: _Side, b: _Side) -> Iterator[Row]:
    on_path = [side.sent(Stream.MAIN) for side in (a, b)]
    beside = [side.sent(Stream.GATHER) for side in (a, b)]
    for name, x, y in _both(*on_path):
        if x or y:
            yield _row(Class.MOVED, f"on the critical path: {name}", (x, y), "bytes")
    yield _row(Class.MOVED, "on the critical path: all exchanges", [sum(sent.values()) for sent in on_path], "bytes")
    times = [side.seconds(sent) for side, sent in zip((a, b), on_path, strict=True)]
    yield _row(Class.MOVED, "on the critical path: all exchanges", times, "s", _longest(a, b, set(on_path[0])))
    yield _row(Class.MOVED, "weight gather beside it", [sum(sent.values()) for sent in beside], "bytes", _gathers(a, b))
    streams = [side.cost.streams[Stream.GATHER] for side in (a, b)]
    yield _row(Class.MOVED, "weight gather beside it", [s.busy for s in streams], "s")
    yield _row(Class.MOVED, "weight gather exposed", [s.exposed for s in streams], "s")


def _time(a: _Side, b: _Side) -> Iterator[Row]:
    kinds = [{k.layer_kind: k for k in side.cost.layer_kinds} for side in (a, b)]
    for name in kinds[0]:
        x, y = (side[name].main_seconds for side in kinds)
        yield _row(Class.TIME, name, (x, y), "s", _longest(a, b, kind=name))
        waits = [side[name].wait_seconds for side in kinds]
        if any(waits):
            yield _row(Class.TIME, f"wait for the weights of {name}", waits, "s")
    for stream in Stream:
        x, y = (side.cost.streams[stream] for side in (a, b))
        yield _row(Class.TIME, f"{stream} stream busy", (x.busy, y.busy), "s")
        yield _row(Class.TIME, f"{stream} stream exposed", (x.exposed, y.exposed), "s")
    yield _row(Class.TIME, "step", (a.found.step, b.found.step), "s")


def _memory(a: _Side, b: _Side) -> Iterator[Row]:
    rules = {line.name: line.size.names for line in a.books.lines}
    for name, x, y in _both(a.ledger.by_name, b.ledger.by_name):
        cause = _causes(a, b, rules.get(name, frozenset())) if x != y else ""
        yield _row(Class.MEMORY, name, (x, y), "bytes", cause)
    figures = {
        "budget for pools": ("budget_bytes", "bytes"),
        "KV tokens a rank": ("kv_tokens_per_rank", "tokens"),
        "KV tokens of the instance": ("kv_tokens_instance", "tokens"),
        "load peak": ("load_peak_bytes", "bytes"),
        "released after loading": ("released_after_load", "bytes"),
    }
    for name, (field, unit) in figures.items():
        yield _row(Class.MEMORY, name, (getattr(a.ledger, field), getattr(b.ledger, field)), unit)


def _row(row_class: Class, name: str, sides: Sequence[float], unit: str, cause: str = "") -> Row:
    a, b = sides
    return Row(row_class, name, a, b, unit, cause)


def _both(a: Mapping[str, float], b: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Keys of either, in order, with 0 where one lacks it."""
    for name in dict.fromkeys([*a, *b]):
        yield name, a.get(name, 0), b.get(name, 0)


def _why(a: _Side, b: _Side, x: float, y: float, matter: Matter, op: str | None = None) -> str:
    """The quantities on which the bytes of a matter depend and in which the layouts differ."""
    if x == y:
        return ""
    parts = [p for side in (a, b) for p in side.moved if p.matter is matter and op in (None, p.op)]
    return _causes(a, b, frozenset[str]().union(*(p.depends for p in parts)))


def _gathers(a: _Side, b: _Side) -> str:
    return _causes(a, b, ("gathers_attention", "gathers_moe", "weight_shard", "sharded_draft"))


def _causes(a: _Side, b: _Side, names: Iterable[str]) -> str:
    """`slots 33 / 209, attn_tp 1 / 8`: those that differ most first."""

    def apart(name: str) -> float:
        x, y = a.values[name], b.values[name]
        return abs(log(x / y)) if x > 0 and y > 0 else inf

    differing = [n for n in names if n in a.values and a.values[n] != b.values[n]]
    ordered = sorted(differing, key=lambda name: (-apart(name), name))
    return ", ".join(f"{n} {a.values[n]:g} / {b.values[n]:g}" for n in ordered[:_CAUSES])


def _longest(a: _Side, b: _Side, names: set[str] | None = None, kind: str | None = None) -> str:
    """The op whose time differs most among those of the names, or of a kind of layer on the main stream."""
    sums: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for side, spent in zip((a, b), sums, strict=True):
        for op in side.cost.ops:
            if op.stream is Stream.MAIN and kind in (None, op.layer_kind) and (names is None or op.name in names):
                spent[op.name] = spent.get(op.name, 0.0) + op.seconds_total
    apart = {name: y - x for name, x, y in _both(*sums)}
    largest = max(apart, key=lambda name: abs(apart[name]), default=None)
    return f"most: {largest} {1e3 * apart[largest]:+.3g} ms" if largest is not None and apart[largest] else ""
