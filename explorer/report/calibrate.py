"""A calibration as tables: what was measured beside the prediction before and after, and the figures that moved."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document
from explorer.report.sheet import Sheet
from hw.units import format_seconds

_SHOWN = 24
_FAR = 2.0


def draw(document: Document) -> RenderableType:
    """Everything that a `calibration/1` document says."""
    parts = [Text(head(document), style="dim"), Text(errors_line(document), style="bold")]
    parts += [observations_table(document), figures_table(document)]
    if document["engine"] is not None:
        parts.append(Text(engine_line(document["engine"])))
    return Group(*parts)


def head(document: Document) -> str:
    """Which curves were adjusted to which files, in one line."""
    asked = document["request"]
    files = ", ".join(f"{s['file']} ({s['format']}, {s['date']})" for s in document["sources"])
    return f"{asked['hardware']} | {files}"


def errors_line(document: Document) -> str:
    """The median error of the predictions before and after."""
    errors = document["errors"]
    before, after = 100 * errors["median_before"], 100 * errors["median_after"]
    return f"{errors['observations']} observations, median error {before:.1f} % before, {after:.1f} % after"


def observations_table(document: Document) -> Sheet:
    """Each observation beside the prediction, those that are furthest off first; the rest is counted."""
    rows = sorted(document["observations"], key=lambda row: -abs(row["after"] / row["measured"] - 1.0))
    drawn = Sheet(
        "Predicted over measured", "file", "observation", "measured", "before %", "after %",
        wraps=("file", "observation"), spare=("file",), caption=_more(rows),
    )  # fmt: skip
    for row in rows[:_SHOWN]:
        ends = (f"{100 * (row[end] / row['measured'] - 1.0):+.1f}" for end in ("before", "after"))
        drawn.add(row["file"], row["name"], format_seconds(row["measured"]), *ends)
    return drawn


def figures_table(document: Document) -> Sheet:
    """Figures that moved, those that moved furthest beyond what was known of them first."""
    rows = document["figures"]
    drawn = Sheet(
        "Figures", "figure", "before", "after", "x", "known to %", "moved (sd)", "told %", "was",
        left=("was",), wraps=("figure",), spare=("was", "told %"), caption=_more(rows),
    )  # fmt: skip
    for row in rows[:_SHOWN]:
        far = "bold yellow" if abs(row["pull"]) > _FAR else ""
        ends = (_value(row[end], row["unit"]) for end in ("before", "after"))
        known = (f"{100 * row['width']:.0f}", f"{row['pull']:+.2f}", f"{100 * row['told']:.0f}")
        drawn.add(row["figure"], *ends, f"{row['ratio']:.3f}", *known, row["provenance"], style=far)
    return drawn


def engine_line(engine: Document) -> str:
    """What was laid to the engine instead of the curves."""
    return (
        f"the engine's own work in a step: x {engine['factor']:.2f} ({engine['pull']:+.1f} sd); it is common to all "
        "machines and no part of the curves"
    )


def _value(value: float, unit: str) -> str:
    return format_seconds(value) if unit == "s" else f"{value:.3f}"


def _more(rows: Sequence[Document]) -> str | None:
    hidden = len(rows) - _SHOWN
    return f"{hidden} more (--json)." if hidden > 0 else NOTHING if not rows else None
