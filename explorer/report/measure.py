"""A measured machine as a table: how good each curve is, and how far from the chip's own."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document
from explorer.report.sheet import Sheet
from hw.units import format_rate


def draw(document: Document) -> RenderableType:
    """What a `measure/1` document says beside its rows."""
    parts = [Text(head(document), style="dim")]
    if copies := document["copy_bytes_per_s"]:
        rates = ", ".join(f"{form} {format_rate(rate)}" for form, rate in copies.items())
        parts.append(Text(f"copies, read plus written: {rates}", style="bold"))
    return Group(*parts, curves_table(document))


def head(document: Document) -> str:
    """What was measured, in one line."""
    devices = document["devices"]
    return (
        f"{document['machine']}: {devices['count']} x {devices['kind']}, jax {document['versions']['jax']}, "
        f"{document['date']}, {len(document['rows'])} rows"
    )


def curves_table(document: Document) -> Sheet:
    """Fitted curves: errors in per cent, beside those of the chip's own, and the best rates of any row."""
    drawn = Sheet(
        "Curves", "curve", "rows", "error %", "held out %", "chip's %", "x chip's", "best", "",
        left=("curve",), spare=("chip's %", ""),
        caption=f"x chip's: how much longer rows take than the {document['chip']}'s own curves say (median).",
    )  # fmt: skip
    for row in document["curves"]:
        computed = format_rate(row["flops_per_s"], "FLOP/s") if row["flops_per_s"] else NOTHING
        errors = (f"{100 * row[which]:.1f}" for which in ("error", "held_out", "before"))
        drawn.add(
            row["owner"], str(row["rows"]), *errors, f"{row['longer']:.2f}", format_rate(row["bytes_per_s"]), computed
        )
    return drawn
