"""A recorded step as tables: where its wall time goes, layers, copies, kernels, and the prediction beside it."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document, ms, share, us
from explorer.report.sheet import Sheet

_OPS = 16
_TIME = (
    ("kernels (all but peer copies)", "kernels_seconds"),
    ("peer copies only", "peer_copies_only_seconds"),
    ("idle", "idle_seconds"),
)
_INSIDE = (
    ("anything runs", "union_seconds"),
    ("communication only", "communication_only_seconds"),
    ("exposed copies", "exposed_copies_seconds"),
)


def draw(document: Document) -> RenderableType:
    """Everything that a `trace/1` document says, the step first and the prediction last."""
    tables = [time_table(document), kinds_table(document), streams_table(document)]
    if document["copy_groups"]:
        tables.append(copies_table(document))
    tables.append(ops_table(document))
    if document["lineup"] is not None:
        tables.append(lineup_table(document))
    return Group(Text(head(document), style="dim"), Text(step_line(document), style="bold"), *tables)


def head(document: Document) -> str:
    """What was read, in one line."""
    read = document["recording"]
    parts = [document["request"]["file"], read["format"], f"GPU {document['device']}", f"{read['events']:,} events"]
    return " | ".join(parts)


def step_line(document: Document) -> str:
    """Length of the step, and of how many it is the median."""
    steps = document["steps"]
    found = f" (median of {steps['count']}: {ms(steps['low_seconds'])} to {ms(steps['high_seconds'])} ms)"
    return f"step {ms(document['step_seconds'])} ms{found if steps['count'] > 1 else ''}"


def time_table(document: Document) -> Sheet:
    """Three parts that sum to the wall time, then parts of it that overlap with them."""
    drawn = Sheet("Wall time", "GPU", "ms", "% of step", left=("GPU",))
    for group in (_TIME, _INSIDE):
        for name, key in group:
            seconds = document["time"][key]
            drawn.add(name, ms(seconds), share(seconds, document["step_seconds"]))
        drawn.section()
    return drawn


def kinds_table(document: Document) -> Sheet:
    """Each kind of layer: its wall time, the main stream's work in it, and the gathers for it."""
    head = ("layer kind", "layers", "wall ms", "main ms", "kernel sum ms", "gather ms", "exposed ms")
    drawn = Sheet(f"Time by kind of layer (by {document['layers_found_by']})", *head, wraps=("layer kind",))
    parts = ("wall_seconds", "main_seconds", "kernel_seconds", "gather_seconds", "exposed_seconds")
    for kind in document["layer_kinds"]:
        drawn.add(kind["layer_kind"], str(kind["count"]), *(ms(kind[part]) for part in parts))
    drawn.section()
    sums = [sum(kind[part] for kind in document["layer_kinds"]) for part in parts]
    drawn.add("sum", str(sum(kind["count"] for kind in document["layer_kinds"])), *map(ms, sums))
    return drawn


def streams_table(document: Document) -> Sheet:
    """Each stream that ran something."""
    drawn = Sheet("Streams", "stream", "events", "busy ms", "% of step", wraps=("stream",))
    for stream in document["streams"]:
        name = stream["stream"] + (" (main)" if stream["main"] else "")
        busy = stream["busy_seconds"]
        drawn.add(name, f"{stream['events']:,}", ms(busy), share(busy, document["step_seconds"]))
    return drawn


def copies_table(document: Document) -> Sheet:
    """Copies from other GPUs, by the shape of their groups."""
    head = ("for", "groups", "copies each", "MB", "us", "GB/s", "GB/s of a copy", "exposed ms")
    drawn = Sheet("Groups of copies between GPUs (medians)", *head, wraps=("for",))
    for group in document["copy_groups"]:
        drawn.add(
            group["layer_kind"] or NOTHING, str(group["count"]), str(group["copies"]), _scaled(group["bytes"], 1e6),
            us(group["seconds"]), _scaled(group["bandwidth"], 1e9), _scaled(group["copy_bandwidth"], 1e9),
            ms(group["exposed_seconds"]),
        )  # fmt: skip
    return drawn


def ops_table(document: Document) -> Sheet:
    """The longest kernels and copies, and the rest in one line."""
    head = ("name", "kind", "count", "each us", "total ms")
    drawn = Sheet("Longest kernels and copies", *head, left=("kind",), wraps=("name",), spare=("kind",))
    for op in document["ops"][:_OPS]:
        drawn.add(op["name"], op["kind"], f"{op['count']:,}", us(op["seconds_each"]), ms(op["seconds_total"]))
    rest = document["ops"][_OPS:]
    if rest:
        drawn.section()
        drawn.add(f"{len(rest)} more", "", "", "", ms(sum(op["seconds_total"] for op in rest)))
    return drawn


def lineup_table(document: Document) -> Sheet:
    """Measured beside predicted."""
    asked = document["request"]["against"]
    title = f"Beside the prediction: {asked['model']}, {asked['gpus']} x {asked['hardware']}, {document['layout_text']}"
    drawn = Sheet(
        title, "part", "quantity", "measured ms", "predicted ms", "ratio", left=("quantity",), wraps=("part",)
    )
    before = None
    for line in document["lineup"]:
        if before is not None and line["part"] != before:
            drawn.section()
        shown = _count if line["quantity"] == "layers" else ms
        ratio = NOTHING if line["ratio"] is None else f"{line['ratio']:.2f}"
        part = "" if line["part"] == before else line["part"]
        drawn.add(part, line["quantity"], shown(line["measured"]), shown(line["predicted"]), ratio)
        before = line["part"]
    return drawn


def _count(count: float | None) -> str:
    return NOTHING if count is None else f"{count:,}"


def _scaled(value: float | None, unit: float) -> str:
    return NOTHING if value is None else f"{value / unit:,.1f}"
