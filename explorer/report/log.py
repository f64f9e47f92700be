"""A start-up log as tables: rows beside their predictions, counts, errors; and two logs side by side."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import Document, Keys, gib
from explorer.report.sheet import Sheet


def draw(document: Document) -> RenderableType:
    """Everything that a `log/1` document says."""
    parts = [part for log in document["logs"] for part in log_parts(log)]
    if document["against"]:
        parts.append(against_table(document))
    return Group(*parts)


def log_parts(log: Document) -> Iterator[RenderableType]:
    """One log: what it is, its rows, its counts, what went wrong."""
    version = f" {log['version']}" if log["version"] else ""
    state = "serves" if log["ready"] else "does not say that it serves"
    shown = f" | rank {log['rank']} of {len(log['ranks'])}" if len(log["ranks"]) > 1 else ""
    yield Text(f"{log['file']} | {log['engine']}{version} | {log['lines_read']:,} lines | {state}{shown}", style="dim")
    if log["layout_text"]:
        yield Keys(log["layout_text"], style="bold green")
    if log["not_predicted"]:
        yield Text(f"nothing is predicted: {log['not_predicted']}")
    if log["rows"]:
        yield rows_table(log)
    if log["counts"]:
        yield counts_table(log)
    for error in log["errors"]:
        yield Text(f"line {error['line']:,}, {error['rank']}: {error['says'] or 'failed'}", style="red")


def rows_table(log: Document) -> Sheet:
    """Rows of the rank with the least left. A range is over all ranks."""
    beside = ("predicted", "residual", "verdict", "by") if any(row["predicted"] for row in log["rows"]) else ()
    drawn = Sheet(
        "Memory, as the log says it", "row", "line", "GiB", "ranks", *beside,
        left=("row", "verdict"), wraps=("by",), spare=("by", "ranks", "line"),
        caption="A printed figure stands for all that would be rounded to it.",
    )  # fmt: skip
    for row in log["rows"]:
        ranks = "" if row["low"] == row["high"] else f"{gib(row['low'])} to {gib(row['high'])}"
        cells = [row["name"], f"{row['line']:,}", gib(row["value"]), ranks, *_judged(row)]
        drawn.add(*cells[: 4 + len(beside)], style="" if row["kind"] != "free" else "dim")
    return drawn


def _judged(row: Document) -> tuple[str, ...]:
    predicted = row["predicted"]
    if predicted is None:
        return "", "", "", ""
    return gib(predicted["bytes"]), gib(row["residual"]), row["verdict"], predicted["basis"]


def counts_table(log: Document) -> Sheet:
    """What the log counts beside what its engine's rules make of the free memory that it read."""
    known = any(row["predicted"] is not None for row in log["counts"])
    drawn = Sheet("Counts", "figure", "log", *(("predicted", "error %") if known else ()), left=("figure",))
    for row in log["counts"]:
        error = "" if row["error"] is None else f"{100 * row['error']:+.2f}"
        cells = [row["name"], counted(row["logged"]), counted(row["predicted"]), error]
        drawn.add(*cells[: 4 if known else 2])
    return drawn


def counted(value: float | None) -> str:
    """A count in full, a ratio with its printed digits."""
    if value is None:
        return ""
    return f"{value:,}" if value == int(value) else f"{value:.2f}"


def against_table(document: Document) -> Sheet:
    """Two logs, row by row."""
    a, b = (log["file"] for log in document["logs"][:2])
    drawn = Sheet("Side by side, GiB", "row", "A", "B", "B - A", "predicted", left=("row",), caption=f"A: {a}\nB: {b}")
    for row in document["against"]:
        difference = "" if row["difference"] is None else f"{row['difference'] / 2**30:+.2f}"
        predicted = "" if row["predicted"] is None else f"{row['predicted'] / 2**30:+.2f}"
        a_, b_ = ("" if row[key] is None else gib(row[key]) for key in ("a", "b"))
        drawn.add(row["name"], a_, b_, difference, predicted)
    return drawn
