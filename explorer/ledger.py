"""Where the memory of a GPU goes, line by line to the byte, and what is left of it for requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.evaluate import Tables
from explorer.load_peak import loading
from explorer.priced import Priced, priced
from explorer.request import Request
from explorer.residents.division import Division
from explorer.residents.engine import EngineMemory, engine_memory
from explorer.residents.line import Group
from explorer.residents.remedy import shortage
from layouts.layout import Layout
from layouts.serving.requests import Clamp, Running, requests_that_run


@dataclass(frozen=True)
class LedgerLine:
    """One use of memory on the GPU of the heaviest stage. `low` and `high` bound an estimate; equal where exact."""

    name: str
    group: Group
    bytes: int
    exact: bool
    rule: str
    provenance: str
    low: int
    high: int


@dataclass(frozen=True)
class Ledger:
    """What fills a GPU; the lines sum to `free_bytes`, what the driver leaves free, to the byte.

    `budget_bytes` is what weights and staging leave of the memory fraction for pools. `max_running_requests` and
    `kv_tokens_instance` are those of the whole instance, `longest_context` the tokens that one request may have.
    `load_peak_bytes` is what weights, staging and loading take together at most, `released_after_load` what of it goes.
    """

    request: Request
    layout: Layout
    lines: tuple[LedgerLine, ...]
    feasible: bool
    reason: str | None
    remedy: str | None
    budget_bytes: int
    free_bytes: int
    mem_fraction: float
    engine_default_mem_fraction: float | None
    kv_tokens_per_rank: int
    kv_tokens_instance: int
    max_running_requests: int
    binding_clamp: Clamp
    longest_context: int
    load_peak_bytes: int
    released_after_load: int
    engine: EngineMemory

    @property
    def by_name(self) -> Mapping[str, int]:
        """Bytes of each line."""
        return {line.name: line.bytes for line in self.lines}

    def of(self, group: Group) -> int:
        """Bytes of a group."""
        return sum(line.bytes for line in self.lines if line.group is group)

    def document(self) -> Document:
        """The `memory/1` document; `reason` and `remedy` only where the load does not fit."""
        found = {name: plain(value) for name, value in vars(self).items() if name not in ("request", "layout")}
        kept = {name: value for name, value in found.items() if value is not None or name not in ("reason", "remedy")}
        return {**heading(Schema.MEMORY, self.request), **layout_entry(self.layout, self.request.model), **kept}


def ledger(request: Request, layout: Layout, tables: Tables | None = None) -> Ledger:
    """Every line of a valid layout's memory under a load, and what it admits; infeasible ones say what would help."""
    return ledger_of(priced(request, layout, tables))


def ledger_of(found: Priced) -> Ledger:
    """The same for a layout that is priced already."""
    books, request, layout = Division(found), found.request, found.layout
    short = shortage(books)
    running = _running(books)
    together = running.requests * books.groups  # groups run alike, but no more requests run than there are
    engine = engine_memory(books)
    released = loading(request.model, books.numbers).released
    group_tokens, limit = books.kv_tokens * layout.dcp, request.model.context_limit
    return Ledger(
        request=request,
        layout=layout,
        lines=tuple(_lines(books)),
        feasible=short is None,
        reason=short.reason if short else None,
        remedy=short.remedy if short else None,
        budget_bytes=books.budget,
        free_bytes=books.free,
        mem_fraction=float(found.held.mem_fraction),
        engine_default_mem_fraction=engine.default_mem_fraction,
        kv_tokens_per_rank=books.kv_tokens,
        kv_tokens_instance=group_tokens * books.groups,
        max_running_requests=min(together, request.concurrency or together),
        binding_clamp=running.clamp,
        longest_context=min(group_tokens, limit) if books.slot else limit,
        load_peak_bytes=books.weights + released,
        released_after_load=released,
        engine=engine,
    )


def _running(books: Division) -> Running:
    """Requests of one attention group, by the engine's three clamps."""
    wanted = max(1, ceil(books.wanted))
    context = books.found.request.context
    slots = int(books.budget // books.state_slot) - 1 if books.state else books.slots - 1
    return requests_that_run(
        max_running=wanted * books.found.layout.attn_dp,
        attn_dp=books.found.layout.attn_dp,
        kv_tokens=books.kv_tokens * books.dcp if books.slot else wanted * context,
        tokens_a_request=context,
        state_slots=max(0, min(slots, books.slots - 1)) if books.state else None,
    )


def _lines(books: Division) -> Iterator[LedgerLine]:
    """In the order in which an engine allocates: groups, weights, staging, state, KV, what lives in the reserve."""
    for group in Group:
        for line in books.lines:
            if line.group is group:
                size = books.size(line)
                low, high = int(size * line.low), ceil(size * line.high)
                yield LedgerLine(line.name, group, size, line.exact, str(line.size), line.provenance, low, high)
        if group is Group.STAGING:
            yield from _staging(books)
        if group is Group.KV:
            yield from _pool(books)
    yield _remainder(books)


def _staging(books: Division) -> Iterator[LedgerLine]:
    """Two buffers of the largest layer that is gathered; the draft has two of its own."""
    held, staged = books.found.held, books.found.tables.memory.staged
    source = "one buffer is read while the other is written (article 000)"
    parts = (("target", staged[0], held.staging), ("draft", staged[1], held.draft_staging))
    for name, layers, size in parts:
        rule = f"2 x the largest gathered of: {'; '.join(str(e) for e in layers if e) or '0'}"
        if any(layers):
            yield _exact(f"staging: {name}", Group.STAGING, round(float(size)), rule, source)


def _pool(books: Division) -> Iterator[LedgerLine]:
    """Whole token slots, and what is left of the static share; negative where weights and state exceed it."""
    pool = books.kv_tokens * books.slot
    rule = f"whole token slots of {books.slot_rule} B that fit into the rest of the static share"
    source = "the pool takes what weights, staging and state leave"
    if books.slot:
        yield _exact("KV pool", Group.KV, pool, rule, source)
    rest = books.for_kv - pool
    yield _exact("static share left over", Group.KV, rest, "less than one token slot, unless nothing fits", source)


def _remainder(books: Division) -> LedgerLine:
    estimates = [(line, books.size(line)) for line in books.lines if line.group is Group.RESERVE and not line.exact]
    less = sum(ceil(size * line.high) - size for line, size in estimates)
    more = sum(size - int(size * line.low) for line, size in estimates)
    left = books.remainder
    return LedgerLine(
        name="remainder of the reserve",
        group=Group.RESERVE,
        bytes=left,
        exact=False,
        rule="(1 - mem_fraction) x free before the weights - what lives in the reserve",
        provenance="by difference; its range is that of the estimates",
        low=left - less,
        high=left + more,
    )


def _exact(name: str, group: Group, size: int, rule: str, provenance: str) -> LedgerLine:
    return LedgerLine(name, group, size, True, rule, provenance, size, size)
