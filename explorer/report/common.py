"""What all tables share: how numbers are written, how a layout is broken into lines, how bytes are grouped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hw.units import GIB

Document = Mapping[str, Any]
NOTHING: Final = "-"

# The order in which a ledger is read: what is there first, then what is left of the GPU for requests.
GROUPS: Final[Mapping[str, str]] = {
    "start": "before the weights",
    "weights": "weights",
    "staging": "staging buffers",
    "state": "state pools",
    "kv": "KV pool",
    "reserve": "reserve",
}


class Keys:
    """`a=1,b=2` that breaks into lines after a comma, never inside a key, so that it stays readable in a column."""

    def __init__(self, text: str, style: str = ""):
        self.text, self.style = text, style

    def _parts(self) -> list[str]:
        parts = self.text.split(",")
        return [f"{part}," for part in parts[:-1]] + parts[-1:]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self._parts())), len(self.text)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self._parts():
            fits = len(lines[-1]) + len(part) <= options.max_width
            lines = [*lines[:-1], lines[-1] + part] if fits else [*lines, part]
        yield Text("\n".join(filter(None, lines)), style=self.style, overflow="fold")


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Two columns without a frame: what, and its value."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="cyan", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(name, Text(value))
    return drawn


def gib(count: float | None) -> str:
    """Bytes in GiB with two decimals, without the unit."""
    return NOTHING if count is None else f"{count / GIB:,.2f}"


def ms(seconds: float | None, digits: int = 2) -> str:
    """Seconds in milliseconds, without the unit."""
    return NOTHING if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def us(seconds: float | None) -> str:
    """Seconds in microseconds, without the unit."""
    return NOTHING if seconds is None else f"{seconds * 1e6:,.1f}"


def number(value: float | None) -> str:
    """A rate or a count: three significant digits below a thousand, whole and grouped above."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def share(part: float, whole: float) -> str:
    """A part in per cent of the whole."""
    return f"{100 * part / whole:.1f}" if whole else NOTHING


def span(low_high: Sequence[float] | None) -> str:
    """A range of seconds, in milliseconds."""
    return NOTHING if low_high is None else f"{ms(low_high[0], 1)} to {ms(low_high[1], 1)}"


def by_group(lines: Iterable[Document]) -> dict[str, int]:
    """Bytes of each group, in reading order, groups without lines left out."""
    sums: dict[str, int] = {}
    for line in lines:
        sums[line["group"]] = sums.get(line["group"], 0) + line["bytes"]
    known = [group for group in GROUPS if group in sums]
    return {group: sums[group] for group in [*known, *(g for g in sums if g not in known)]}


def question_line(document: Document) -> str:
    """The question in one line, for the head of a report."""
    asked = document["request"]
    running = asked["concurrency"]
    parts = [
        asked["model"] + (f" + {asked['draft']}" if asked.get("draft") else ""),
        f"{asked['gpus']} x {asked['hardware']}",
        f"{asked['phase']}, context {asked['context']:,}",
        *([f"concurrency {running:,}"] if running is not None else []),
        *([f"verify {asked['verify_width']}"] if asked["verify_width"] > 1 else []),
        *([f"accept {asked['accept_length']:g}"] if asked["accept_length"] > 1 else []),
        *([f"chunk {asked['chunk']:,}"] if asked["phase"] == "prefill" else []),
    ]
    return " | ".join(parts)


def clamped(held: Document) -> str:
    """What keeps more requests from running: nothing, where all that were asked for do."""
    asked = held["binding_clamp"] == "max_running_requests"
    return "as many as asked" if asked else f"limit: {held['binding_clamp']}"
