"""A step as tables: its streams, its time by kind of layer, its longest ops, its critical path."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import Document, Keys, ms, question_line, share, span, us
from explorer.report.sheet import Sheet

_OPS = 16
_STRETCHES = 8


def draw(document: Document) -> RenderableType:
    """Everything that a `cost/1` document says, the sum first."""
    range_ = f" (range {span(document['step_seconds_range'])} ms)" if document.get("step_seconds_range") else ""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold green"),
        Text(f"step {ms(document['step_seconds'])} ms{range_}", style="bold"),
        *coverage_line(document),
        streams_table(document),
        kinds_table(document),
        ops_table(document),
        path_table(document),
    )


def coverage_line(document: Document) -> tuple[Text, ...]:
    """How much of the step is measured, where op tables were asked for."""
    found = document.get("op_tables")
    if not found:
        return ()
    part = f"{found['covered']} of {found['ops']} ops, {100 * found['share']:.0f} % of the work"
    return (Text(f"op tables of {found['engine']} cover {part}"),)


def provenance(op: Document) -> str:
    """Where an op's seconds come from; of a table's, how they were read."""
    table = op.get("table")
    return str(op["provenance"]) if table is None else f"{op['provenance']}, {table.rpartition(', ')[2]}"


def streams_table(document: Document) -> Sheet:
    """Busy, idle and exposed time of each stream."""
    drawn = Sheet("Streams", "stream", "busy ms", "idle ms", "exposed ms", "busy %", left=("stream",))
    for name, stream in document["streams"].items():
        busy = stream["busy"]
        drawn.add(name, ms(busy), ms(stream["idle"]), ms(stream["exposed"]), share(busy, document["step_seconds"]))
    return drawn


def kinds_table(document: Document) -> Sheet:
    """Work and gathers of each kind of layer, and waits for its weights; longest first."""
    head = ("layer kind", "layers", "main ms", "gather ms", "wait ms", "% of step", "each ms")
    drawn = Sheet("Time by kind of layer", *head, left=("layer kind",))
    kinds = sorted(document["layer_kinds"], key=lambda kind: -kind["main_seconds"] - kind["wait_seconds"])
    parts = ("main_seconds", "gather_seconds", "wait_seconds")
    for kind in kinds:
        shown = kind["main_seconds"] + kind["wait_seconds"]
        drawn.add(
            kind["layer_kind"], str(kind["count"]), *(ms(kind[part]) for part in parts),
            share(shown, document["step_seconds"]), ms(shown / kind["count"], 3),
        )  # fmt: skip
    drawn.section()
    sums = [sum(kind[part] for kind in kinds) for part in parts]
    count = sum(kind["count"] for kind in kinds)
    drawn.add("sum", str(count), *map(ms, sums), share(sums[0] + sums[2], document["step_seconds"]), "")
    return drawn


def ops_table(document: Document) -> Sheet:
    """The longest ops over the whole step, and the rest in one line."""
    ordered = sorted(document["ops"], key=lambda op: -op["seconds_total"])
    words = ("op", "layer kind", "stream", "bound by", "provenance")
    drawn = Sheet(
        "Longest ops", "op", "layer kind", "stream", "count", "each us", "total ms", "bound by", "provenance",
        left=words, spare=("stream", "provenance", "count"),
    )  # fmt: skip
    for op in ordered[:_OPS]:
        drawn.add(
            op["name"], op["layer_kind"], op["stream"], f"{op['count']:g}", us(op["seconds_each"]),
            ms(op["seconds_total"]), str(op["bound"]), provenance(op),
        )  # fmt: skip
    rest = ordered[_OPS:]
    if rest:
        drawn.section()
        drawn.add(f"{len(rest)} more", "", "", "", "", ms(sum(op["seconds_total"] for op in rest)), "", "")
    return drawn


def path_table(document: Document) -> Sheet:
    """What the step's time is made of."""
    drawn = Sheet("Critical path", "stretch", "stream", "ms", "% of step", left=("stretch", "stream"))
    ordered = sorted(document["critical_path"], key=lambda stretch: -stretch["seconds"])
    for stretch in ordered[:_STRETCHES]:
        drawn.add(stretch["name"], stretch["stream"], ms(stretch["seconds"]), f"{100 * stretch['share']:.1f}")
    rest = ordered[_STRETCHES:]
    if rest:
        left = sum(stretch["seconds"] for stretch in rest)
        drawn.add(f"{len(rest)} more", "", ms(left), share(left, document["step_seconds"]))
    return drawn
