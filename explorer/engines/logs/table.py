"""Where a rank's memory went, by what successive lines of its start-up log say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from explorer.engines.logs.entries import Engine, Entry, Event, Log, Rank, Reading


class Kind(StrEnum):
    """What a row of the table is: memory that was there, that was free then, that may be used, that something took;
    part of another row that something took; or what went between two rows and no line names."""

    TOTAL = "total"
    FREE = "free"
    BUDGET = "budget"
    TAKEN = "taken"
    PART = "part"
    NOT_NAMED = "not named"


@dataclass(frozen=True)
class Row:
    """Bytes of one phase, with the interval that the printed digits stand for. `line`: where it is read. `model`: the
    class that was loaded, where the line says it."""

    kind: Kind
    reading: Reading
    line: int
    model: str | None = None


Rows = dict[str, Row]
_STATES: Final = {
    "conv": "conv states",
    "ssm": "SSM states",
    "intermediate_ssm": "SSM states to verify",
    "intermediate_conv": "conv windows to verify",
}
_OF_POOLS: Final = (Event.KV_POOL, Event.SWA_POOL, Event.STATE_POOL, Event.REPLAY_POOL, Event.POOL_END)
_RINGS: Final = ("d", "k", "g", "rawv", "rawk", "beta")


def memory_table(log: Log) -> dict[Rank, Rows]:
    """Rows of each rank that says anything of its memory, in the order in which it was taken.

    SGLang: free memory at each point where it is printed, what lines between say that something took, and what of the
    fall they do not name, if rounding does not explain it (as article 000 keeps its books). vLLM: its budget and what
    the profile of the start takes from it. A draft's rows begin with "draft".
    """
    rows = _of_vllm if log.engine is Engine.VLLM else _of_sglang
    ranks = sorted({entry.rank for entry in log.entries}, key=lambda rank: rank.order)
    tables = {rank: rows([entry for entry in log.entries if entry.rank == rank]) for rank in ranks}
    return {rank: table for rank, table in tables.items() if table}


def _of_sglang(entries: Sequence[Entry]) -> Rows:
    """Rows, with one for each fall of free memory that is not named by lines between."""
    rows, last, named = Rows(), None, Reading(0.0)
    for name, row in _sglang_rows(entries):
        if row.kind is Kind.TAKEN:
            named += row.reading
        elif last is not None:
            rest = rows[last].reading - row.reading - named
            what = name.removeprefix("after ")
            if what not in rows and last == f"before {what}":  # an old version, which prints only what is free
                rows[what] = Row(Kind.TAKEN, rest, row.line, row.model)
            elif _is_more_than_rounding(rest):
                rows[f"{last} to {name}"] = Row(Kind.NOT_NAMED, rest, row.line)
        name = _unused(name, rows)
        rows[name] = row
        if row.kind is Kind.FREE:
            last, named = name, Reading(0.0)
    return rows


def _is_more_than_rounding(rest: Reading) -> bool:
    return abs(rest.value) > rest.half_width + 1.0  # a byte, for sums of floating-point numbers


def _unused(name: str, rows: Rows) -> str:
    number = 2
    while name in rows:
        name, number = f"{name.partition(' (')[0]} ({number})", number + 1
    return name


def _sglang_rows(entries: Sequence[Entry]) -> Iterator[tuple[str, Row]]:
    loaded = pooled = 0
    pools = list[Entry]()
    for entry in entries:
        if pools and entry.event not in _OF_POOLS:  # the line that ends them is missing
            yield from _pool_rows(pools, f"{_model(pooled)}KV pool")
            pooled, pools = pooled + 1, []
        match entry.event:
            case Event.KV_POOL | Event.SWA_POOL:
                pools.append(entry)
            case Event.POOL_END:
                yield from _pool_rows(pools, f"{_model(pooled)}KV pool")
                yield from _rows(entry, free=f"after {_model(pooled)}pools")
                pooled, pools = pooled + 1, []
            case Event.STATE_POOL | Event.REPLAY_POOL:
                yield from _state_rows(entry, _model(pooled))
            case Event.LOAD_END:
                yield from _plain_rows(entry, _model(loaded))
                loaded += 1
            case _:
                yield from _plain_rows(entry, _model(loaded))
    yield from _pool_rows(pools, f"{_model(pooled)}KV pool")


def _plain_rows(entry: Entry, model: str) -> Iterator[tuple[str, Row]]:
    """Of lines that say by themselves what they are of."""
    match entry.event:
        case Event.DISTRIBUTED_END:
            yield from _rows(entry, taken="process groups")
        case Event.LOAD_BEGIN:
            yield from _rows(entry, free=f"before {model}weights")
        case Event.LOAD_END:
            yield from _rows(entry, taken=f"{model}weights", free=f"after {model}weights")
        case Event.KV_RESIZED:
            name = f"{'draft ' if entry.text('label') else ''}KV pool"
            yield from _pool_rows([entry], name)
            yield from _rows(entry, free=f"after {name}")
        case Event.GRAPH_BEGIN:
            yield from _rows(entry, free=f"before {_graphs(entry)}")
        case Event.GRAPH_END:
            yield from _rows(entry, taken=_graphs(entry), free=f"after {_graphs(entry)}")
        case Event.MAX_TOTAL_TOKENS:
            yield from _rows(entry, free="at the end")
        case _:
            pass


def _model(number: int) -> str:
    """The model of a pool or of weights by its number: drafts are loaded, and get their pools, after the target."""
    return "" if number == 0 else "draft " if number == 1 else f"draft {number} "


def _graphs(entry: Entry) -> str:
    return f"{entry.text('graph') or ''} CUDA graphs".strip()


def _rows(entry: Entry, taken: str | None = None, free: str | None = None) -> Iterator[tuple[str, Row]]:
    """What a line says was taken, then what it says was free after."""
    used, left, model = entry.figure("used"), entry.figure("free"), entry.text("model")
    if taken is not None and used is not None:
        yield taken, Row(Kind.TAKEN, used, entry.line, model)
    if free is not None and left is not None:
        yield free, Row(Kind.FREE, left, entry.line, model)


def _state_rows(entry: Entry, model: str) -> Iterator[tuple[str, Row]]:
    for figure, name in _STATES.items():
        size = entry.figure(figure)
        if size is not None:
            yield f"{model}{name}", Row(Kind.TAKEN, size, entry.line)
    rings = [size for ring in _RINGS if (size := entry.figure(ring)) is not None]
    if rings:
        yield f"{model}replay rings", Row(Kind.TAKEN, sum(rings, Reading(0.0)), entry.line)


def _pool_rows(pools: Sequence[Entry], name: str) -> Iterator[tuple[str, Row]]:
    """One row: the line that sums the pools of a model with window attention, or the sum of its lines."""
    counted = [pool for pool in pools if pool.event is Event.SWA_POOL] or pools
    sizes = [size for pool in counted for part in ("kv", "keys", "values") if (size := pool.figure(part)) is not None]
    if sizes:
        yield name, Row(Kind.TAKEN, sum(sizes, Reading(0.0)), counted[-1].line)


# What vLLM's lines say, in the order of its books: row, kind, and where to read it, the best line first.
_VLLM: Final = (
    ("GPU memory", Kind.TOTAL, "total", (Event.PROFILE_BUDGET, Event.PROFILE, Event.ERROR)),
    ("before start", Kind.FREE, "free", (Event.PROFILE_BUDGET, Event.KV_AVAILABLE)),
    ("budget", Kind.BUDGET, "budget", (Event.PROFILE_BUDGET, Event.ERROR)),
    ("weights and non-torch memory", Kind.TAKEN, "consumed", (Event.PROFILE,)),
    ("weights", Kind.TAKEN, "used", (Event.LOAD_END,)),  # with more decimals than the profile until 0.11
    ("weights", Kind.TAKEN, "weights", (Event.PROFILE,)),
    ("weights and peak activation", Kind.TAKEN, "peak_torch", (Event.PROFILE,)),
    ("non-torch memory", Kind.TAKEN, "non_torch", (Event.PROFILE,)),
    ("peak activation", Kind.TAKEN, "activation", (Event.PROFILE,)),
    ("CUDA graphs, estimated", Kind.PART, "used", (Event.GRAPH_ESTIMATE,)),
    ("CUDA graphs, estimated", Kind.PART, "estimated", (Event.GRAPH_POOL,)),
    ("KV pool", Kind.TAKEN, "kv", (Event.PROFILE, Event.KV_AVAILABLE)),
    ("CUDA graphs", Kind.TAKEN, "graphs", (Event.PROFILE,)),
    ("CUDA graphs", Kind.TAKEN, "used", (Event.GRAPH_POOL, Event.GRAPH_END)),
)
# What a budget is spent on, by the rows that a version prints. Graphs are captured on top of it; their estimate is a
# part of the peak since 0.21 (v1/worker/gpu_worker.py determine_available_memory).
_WITH_WEIGHTS: Final = ("weights and non-torch memory", "weights and peak activation")
_SPENT: Final = (
    ("weights and non-torch memory", "peak activation", "KV pool"),
    ("weights", "non-torch memory", "peak activation", "KV pool"),
    ("weights and peak activation", "non-torch memory", "KV pool"),
)


def _of_vllm(entries: Sequence[Entry]) -> Rows:
    rows = Rows()
    for name, kind, figure, events in _VLLM:
        found = [(e, r) for event in events for e in entries if e.event is event and (r := e.figure(figure))]
        if found and name not in rows:
            entry, reading = found[0]
            rows[name] = Row(kind, reading, entry.line)
    if "weights" in rows and any(name in rows for name in _WITH_WEIGHTS):
        rows["weights"] = replace(rows["weights"], kind=Kind.PART)
    if "budget" not in rows:
        rows = _with_budget(rows, entries)
    spent = next((names for names in _SPENT if all(name in rows for name in ("budget", *names))), None)
    if spent is not None:
        rest = rows["budget"].reading - sum((rows[name].reading for name in spent), Reading(0.0))
        if _is_more_than_rounding(rest):
            rows["budget to KV pool"] = Row(Kind.NOT_NAMED, rest, rows["KV pool"].line)
    return rows


def _with_budget(rows: Rows, entries: Sequence[Entry]) -> Rows:
    """Before 0.6.6 the budget is not printed: it is the fraction of the whole."""
    for entry in entries:
        total, share = entry.figure("total"), entry.figure("utilization")
        if total is not None and share is not None:
            width = total.half_width * share.high + share.half_width * total.value
            budget = Row(Kind.BUDGET, Reading(total.value * share.value, width), entry.line)
            return {"GPU memory": rows["GPU memory"], "budget": budget, **rows}
    return rows
