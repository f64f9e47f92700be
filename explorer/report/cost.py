"""A step as tables: its streams, its time by kind of layer, its longest ops, its critical path."""

from collections import defaultdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from explorer.report.common import Document, Keys, ms, question_line, share, span, table, us

_OPS = 16
_STRETCHES = 8


def draw(document: Document) -> RenderableType:
    """Everything that a `cost/1` document says, the sum first."""
    range_ = f" (range {span(document['step_seconds_range'])} ms)" if document.get("step_seconds_range") else ""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold green"),
        Text(f"step {ms(document['step_seconds'])} ms{range_}", style="bold"),
        streams_table(document),
        kinds_table(document),
        ops_table(document),
        path_table(document),
    )


def streams_table(document: Document) -> Table:
    """Busy, idle and exposed time of each stream."""
    drawn = table("Streams", "stream", "busy ms", "idle ms", "exposed ms", "busy %", left=("stream",))
    for name, stream in document["streams"].items():
        busy = stream["busy"]
        drawn.add_row(name, ms(busy), ms(stream["idle"]), ms(stream["exposed"]), share(busy, document["step_seconds"]))
    return drawn


def kinds_table(document: Document) -> Table:
    """Time of each kind of layer on each stream, longest first."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op in document["ops"]:
        sums[op["layer_kind"]][op["stream"]] += op["seconds_total"]
    streams = sorted({op["stream"] for op in document["ops"]}, key="main gather host".find)
    head = ("layer kind", "ops", *(f"{stream} ms" for stream in streams), "% of step")
    drawn = table("Time by kind of layer", *head, left=("layer kind",))
    for kind, spent in sorted(sums.items(), key=lambda item: -item[1]["main"]):
        count = sum(op["layer_kind"] == kind for op in document["ops"])
        drawn.add_row(kind, str(count), *(ms(spent[s]) for s in streams), share(spent["main"], document["step_seconds"]))
    drawn.add_section()
    every = [sum(spent[s] for spent in sums.values()) for s in streams]
    drawn.add_row("sum", str(len(document["ops"])), *map(ms, every), share(every[0], document["step_seconds"]))
    return drawn


def ops_table(document: Document) -> Table:
    """The longest ops over the whole step, and the rest in one line."""
    ordered = sorted(document["ops"], key=lambda op: -op["seconds_total"])
    words = ("op", "layer kind", "stream", "bound by", "provenance")
    drawn = table(
        "Longest ops", "op", "layer kind", "stream", "count", "each us", "total ms", "bound by", "provenance", left=words
    )
    for op in ordered[:_OPS]:
        drawn.add_row(
            op["name"], op["layer_kind"], op["stream"], f"{op['count']:g}", us(op["seconds_each"]),
            ms(op["seconds_total"]), str(op["bound"]), str(op["provenance"]),
        )  # fmt: skip
    rest = ordered[_OPS:]
    if rest:
        drawn.add_section()
        drawn.add_row(f"{len(rest)} more", "", "", "", "", ms(sum(op["seconds_total"] for op in rest)), "", "")
    return drawn


def path_table(document: Document) -> Table:
    """What the step's time is made of."""
    drawn = table("Critical path", "stretch", "ms", "% of step", left=("stretch",))
    ordered = sorted(document["critical_path"], key=lambda stretch: -stretch["seconds"])
    for stretch in ordered[:_STRETCHES]:
        drawn.add_row(stretch["name"], ms(stretch["seconds"]), share(stretch["seconds"], document["step_seconds"]))
    rest = ordered[_STRETCHES:]
    if rest:
        left = sum(stretch["seconds"] for stretch in rest)
        drawn.add_row(f"{len(rest)} more", ms(left), share(left, document["step_seconds"]))
    return drawn
