"""A start-up log line by line beside the ledger: what each line took, what was to be expected, what is left over."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from explorer.documents import Document, Schema, layout_entry, plain, versions
from explorer.engines.command.records import launch_of_server_args
from explorer.engines.logs.entries import Event, Log, Rank, Reading
from explorer.engines.logs.predicted import Predicted, predictions
from explorer.engines.logs.table import Kind, Row, memory_table
from explorer.engines.setup import Asked, Setup, setup_of
from explorer.engines.startup import Given, Startup, startup
from explorer.engines.startup.parts import Parts
from hw.errors import MeshwrightError
from hw.machine import load_machine

# What stands before arguments in the engines' own lines, by how they begin.
_MARKS: Final = {"S": "server_args=", "{": "non-default args: "}
_MARK: Final = "LLM engine () with config: "
_FREED: Final = ("before weights", "after draft weights", "after weights")


class Verdict(StrEnum):
    """How a row stands to its prediction."""

    ROUNDING = "within the printed digits"
    RANGE = "within the estimate's range"
    APART = "apart"
    NOT_PREDICTED = ""


@dataclass(frozen=True)
class Line:
    """One row: `low` and `high` over the ranks, in bytes as printed. `residual`: measured less predicted, beyond what
    rounding and range explain."""

    name: str
    kind: Kind
    line: int
    value: float
    half_width: float
    low: float
    high: float
    predicted: Predicted | None
    residual: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Counted:
    """A number of the log (tokens, slots, requests) beside what the rules make of the log's own free memory."""

    name: str
    logged: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        """Relative, predicted over logged."""
        return None if self.predicted is None or not self.logged else self.predicted / self.logged - 1.0


@dataclass(frozen=True)
class Reconciled:
    """A log held against a set-up (None: only read). `rank`: whose lines are shown, the one with the least left.
    `refusal`: why the rules would not have started it, for which reason its counts are not predicted."""

    name: str
    log: Log
    setup: Setup | None
    rank: Rank
    lines: tuple[Line, ...]
    counts: tuple[Counted, ...]
    why_not: str | None
    refusal: str | None = None

    def document(self) -> Document:
        """One log of a `log/1` document."""
        setup = self.setup
        return {
            "file": self.name,
            "engine": None if self.log.engine is None else str(self.log.engine),
            "version": self.log.version,
            "ready": self.log.ready,
            "lines_read": self.log.lines,
            "unread": self.log.unread,
            "ranks": [str(rank) for rank in self.log.ranks],
            "rank": str(self.rank),
            "layout_text": None if setup is None else layout_entry(setup.layout, setup.request.model)["layout_text"],
            "not_predicted": self.why_not,
            "rows": plain(self.lines),
            "counts": [{**plain(count), "error": count.error} for count in self.counts],
            "errors": [{"line": e.line, "rank": str(e.rank), "says": e.text("text")} for e in self.log.errors],
        }

    def notes(self) -> list[str]:
        """What was assumed of the log and of its launch, and why a count is not predicted."""
        return [*self.log.notes, *(() if self.setup is None else self.setup.notes), *self._unpredicted()]

    def _unpredicted(self) -> Iterator[str]:
        if self.refusal is not None:
            yield f"{self.name}: counts are not predicted, as by the rules it would not start: {self.refusal}"


def document(logs: tuple[Reconciled, ...]) -> Document:
    """The `log/1` document of one log, or of two side by side."""
    rows = [] if len(logs) < 2 else [plain(pair) for pair in beside(*logs[:2])]
    notes = [note for log in logs for note in log.notes()]
    setups = [log.setup for log in logs]
    layouts = {None if setup is None else setup.layout: setup for setup in setups}
    same = next(iter(layouts.values())) if len(layouts) == 1 else None
    both = {"layout": None, "layout_text": None}
    return {
        "schema": str(Schema.LOG),
        "request": {
            "files": [log.name for log in logs],
            "hardware": next((setup.asked.hardware for setup in setups if setup is not None), None),
        },
        "versions": versions(),
        **(both if same is None else layout_entry(same.layout, same.request.model)),
        "logs": [log.document() for log in logs],
        "against": rows,
        "notes": list(dict.fromkeys(notes)),
    }


@dataclass(frozen=True)
class Pair:
    """A row of two logs, in bytes, and their difference; `predicted` is the difference that the ledger expects."""

    name: str
    a: float | None
    b: float | None
    difference: float | None
    half_width: float
    predicted: int | None


def beside(a: Reconciled, b: Reconciled) -> Iterator[Pair]:
    """Rows of two logs in the order of the first, those of the second alone where they stand in it."""
    left, right = ({line.name: line for line in log.lines} for log in (a, b))
    for name in _merged(list(left), list(right)):
        one, two = left.get(name), right.get(name)
        if one is None or two is None:
            only = one or two
            assert only is not None
            yield Pair(name, one and one.value, two and two.value, None, only.half_width, None)
            continue
        before, after = one.predicted, two.predicted
        expected = None if before is None or after is None else after.bytes - before.bytes
        yield Pair(name, one.value, two.value, two.value - one.value, one.half_width + two.half_width, expected)


def _merged(first: list[str], second: list[str]) -> list[str]:
    """Names of two lists in the order of the first, those of the second alone after what comes before them in it."""
    merged, last = list(first), -1
    for name in second:
        if name in merged:
            last = merged.index(name)
        else:
            last += 1
            merged.insert(last, name)
    return merged


def reconcile(name: str, log: Log, asked: Asked | None, setup: Setup | None = None) -> Reconciled:
    """Hold a log against the ledger. `asked`: the machine, for the arguments that the log prints; `setup` in their
    place where they are known otherwise. Without either, or where the arguments name nothing known, it is only read."""
    tables = memory_table(log)
    rank = _tightest(tables)
    setup, why = _setup(log, asked, setup)
    found: Mapping[str, Predicted] = {}
    up = None
    if setup is not None:
        parts = Parts(setup)
        found = predictions(log, rank, parts)
        up = _started(setup, tables.get(rank, {}))
    lines = tuple(_line(name_, row, tables, found.get(name_)) for name_, row in tables.get(rank, {}).items())
    refusal = None if up is None else up.refusal
    return Reconciled(name, log, setup, rank, lines, tuple(_counts(log, rank, up)), why, refusal)


def _setup(log: Log, asked: Asked | None, setup: Setup | None) -> tuple[Setup | None, str | None]:
    if setup is not None or asked is None:
        return setup, None if setup is not None else "--hardware is not given: the log is only read"
    load_machine(asked.hardware)  # a chip that is unknown is an error, whatever the log says
    if log.launch is None:
        return None, "the log does not print its arguments: give the launch with --command"
    try:
        found = setup_of(launch_of_server_args(_MARKS.get(log.launch[:1], _MARK) + log.launch), asked)
    except MeshwrightError as error:
        return None, str(error)
    return (None, "; ".join(found.broken)) if found.broken else (found, None)


def _tightest(tables: Mapping[Rank, Mapping[str, Row]]) -> Rank:
    """The rank whose free memory falls lowest: it binds."""

    def left(rank: Rank) -> float:
        free = [row.reading.value for row in tables[rank].values() if row.kind is Kind.FREE]
        return free[-1] if free else float("inf")

    return min(tables, key=left, default=Rank())


def _started(setup: Setup, table: Mapping[str, Row]) -> Startup:
    """Start-up with the free memory that the log read in place of ours."""
    readings = {name: int(table[name].reading.value) for name in _FREED if name in table}
    pool, left = table.get("KV pool"), readings.get("after draft weights", readings.get("after weights"))
    given = Given(free=readings.get("before weights"), left=left)
    if setup.launch.engine == "vllm":
        given = replace(given, pool=None if pool is None else int(pool.reading.value))
    return startup(setup, given)


def _line(name: str, row: Row, tables: Mapping[Rank, Mapping[str, Row]], predicted: Predicted | None) -> Line:
    over = [table[name].reading.value for table in tables.values() if name in table]
    residual, verdict = _judged(row.reading, predicted)
    reading = row.reading
    return Line(
        name, row.kind, row.line, reading.value, reading.half_width, min(over), max(over), predicted, residual, verdict
    )


def _judged(reading: Reading, predicted: Predicted | None) -> tuple[float | None, Verdict]:
    if predicted is None:
        return None, Verdict.NOT_PREDICTED
    if reading.holds(predicted.bytes):
        return 0.0, Verdict.ROUNDING
    if predicted.low < predicted.high and predicted.low <= reading.high and reading.low <= predicted.high:
        return 0.0, Verdict.RANGE
    return reading.value - predicted.bytes, Verdict.APART


def _counts(log: Log, rank: Rank, up: Startup | None) -> Iterator[Counted]:
    """What the log counts, of this rank where it says so, else of whoever does."""
    up = up if up is not None and up.starts else None
    wanted = (
        (Event.STATE_POOL, "slots", "state slots", None if up is None else up.state_slots),
        (Event.KV_POOL, "tokens", "KV tokens of a rank", None if up is None else up.kv_tokens),
        (Event.MAX_TOTAL_TOKENS, "tokens", "max_total_num_tokens", None if up is None else up.kv_tokens),
        (Event.MAX_TOTAL_TOKENS, "requests", "max_running_requests", None if up is None else up.admitted),
        (Event.KV_SIZE, "tokens", "GPU KV cache size", None if up is None else up.logged_tokens),
    )
    for event, figure, name, predicted in wanted:
        entries = log.of(event, rank) or log.of(event)
        logged = next((n for e in entries if (n := e.count(figure)) is not None), None)
        if logged is not None:
            yield Counted(name, logged, predicted)
    for entry in (log.of(Event.CONCURRENCY, rank) or log.of(Event.CONCURRENCY))[:1]:
        reading = entry.figure("requests")
        if reading is not None:
            yield Counted("maximum concurrency", reading.value, None if up is None else up.logged_concurrency)
