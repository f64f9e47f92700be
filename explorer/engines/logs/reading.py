"""A start-up log of whatever engine and version as the events that it tells of."""

import os
import pathlib
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from explorer.engines.logs.entries import Engine, Entry, Event, Log, LogError, Rank
from explorer.engines.logs.headers import records
from explorer.engines.logs.lines import Lines
from explorer.engines.logs.patterns import LONGEST_LINE, Read, all_patterns

# A start writes some ten lines a rank; what is kept of a log that holds more than this is bounded by it.
_MOST_ENTRIES: Final = 50_000
_MOST_TEXT: Final = 1 << 23
_LAUNCH: Final = (Event.SERVER_ARGS, Event.ENGINE_CONFIG)
_MEMORY: Final = (Event.LOAD_BEGIN, Event.LOAD_END, Event.KV_POOL, Event.KV_AVAILABLE, Event.PROFILE)
_REMEDY: Final = "give what the engine writes from its launch until it serves (stdout and stderr)"


class _Told(NamedTuple):
    entry: Entry
    engine: Engine | None


def read_log(path: str | pathlib.Path) -> Log:
    """The last start in a log file; of several files of one launch give their concatenation.

    Nothing that the file says is opened or run, and what is kept of it is bounded. LogError for a file that cannot be
    read, or that holds no line of a start.
    """
    try:
        with pathlib.Path(path).expanduser().open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise ValueError("a device has no end")
            lines = Lines(file, all_patterns().markers)
            told, unread, past = _told(lines)
    except (OSError, ValueError, RuntimeError) as error:  # a path may hold a NUL, a home may be unknown
        reason = getattr(error, "strerror", None) or error
        raise LogError(f"log {str(path)!r} cannot be read ({reason}): {_REMEDY}") from None
    if all(entry.text("kind") == "assertion" for entry, _ in told):
        raise LogError(
            f"log {str(path)!r} holds no line of a start of SGLang or vLLM among its {lines.count:,}: {_REMEDY}"
        )
    engine, others = _engine(told)
    starts = _starts([one.entry for one in told if one.engine in (engine, None)])
    chosen = _chosen(starts)
    entries = starts[chosen]
    launch = _launch(entries)
    return Log(
        engine=engine,
        version=next((text for e in entries if (text := e.text("version"))), None),
        entries=tuple(entries),
        launch=launch,
        lines=lines.count,
        unread=unread + past,
        notes=tuple(_notes(lines, entries, launch, len(starts), chosen, others, unread, past)),
    )


def _told(lines: Lines) -> tuple[list[_Told], int, int]:
    """What lines tell of; how many could not be read, and how many came past what is kept."""
    patterns = all_patterns()
    told, text, unread, past = list[_Told](), 0, 0, 0
    for line, raw in lines:
        if len(told) >= _MOST_ENTRIES or text >= _MOST_TEXT or unread >= _MOST_ENTRIES:
            past += 1
            continue
        for record in records(raw):
            for read in patterns.read(record.text):
                if read.values is None:
                    unread += 1
                    continue
                told.append(_Told(Entry(read.event, record.rank, line, record.seconds, read.values), read.engine))
                text += _length(read)
    return told, unread, past


def _length(read: Read) -> int:
    return sum(len(value) for value in (read.values or {}).values() if isinstance(value, str))


def _engine(told: Sequence[_Told]) -> tuple[Engine | None, int]:
    """The engine that most lines are of, and how many are of the other; None for nothing but errors of torch."""
    counts = Counter(engine for _, engine in told if engine is not None)
    if not counts:
        return None, 0
    engine, most = counts.most_common(1)[0]
    return engine, counts.total() - most


def _starts(entries: Sequence[Entry]) -> list[list[Entry]]:
    """One list a start. A new one begins with arguments that come after the end of another, unless its ranks are new:
    logs of several hosts that were put one after the other are one start."""
    starts, ended = [list[Entry]()], False
    for entry in entries:
        if entry.event is Event.SERVER_ARGS and ended:
            starts.append([])
            ended = False
        starts[-1].append(entry)
        ended = ended or entry.event in (Event.INIT_END, Event.ERROR)
    joined = starts[:1]
    for start in starts[1:]:
        if _ranks(start) and _ranks(joined[-1]) and not _ranks(start) & _ranks(joined[-1]):
            joined[-1] = joined[-1] + start
        else:
            joined.append(start)
    return joined


def _ranks(entries: Sequence[Entry]) -> set[Rank]:
    return {entry.rank for entry in entries if entry.rank.named}


def _chosen(starts: Sequence[Sequence[Entry]]) -> int:
    """The last that says anything of memory, else the last."""
    telling = [n for n, start in enumerate(starts) if any(entry.event in _MEMORY for entry in start)]
    return telling[-1] if telling else len(starts) - 1


def _launch(entries: Sequence[Entry]) -> str | None:
    """What the launch was given rather than what the engine made of it, where both are printed."""
    for event in _LAUNCH:
        for entry in entries:
            if entry.event is event and (text := entry.text("text")):
                return text
    return None


def _notes(
    lines: Lines,
    entries: Sequence[Entry],
    launch: str | None,
    starts: int,
    chosen: int,
    others: int,
    unread: int,
    past: int,
) -> Iterator[str]:
    events = {entry.event for entry in entries}
    if starts > 1:
        yield f"the log holds {starts} starts: this is number {chosen + 1}, from line {entries[0].line:,}"
    if launch is None:
        yield "the arguments of the launch are not in the log: it begins later"
    if Event.INIT_END not in events:
        yield "the log ends before the engine serves" + ("" if Event.ERROR not in events else ": it failed")
    if others:
        yield f"{others:,} lines of another engine are left out"
    if unread:
        yield f"{unread:,} lines name an event, but their figures are cut short or of a format that is not known"
    if past:
        yield f"{past:,} lines are left out: more is told of than a start can tell"
    if lines.cut:
        yield f"{lines.cut:,} lines are longer than {LONGEST_LINE >> 10} KiB: the rest of them is not read"
