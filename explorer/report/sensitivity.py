"""Elasticities as a table: what moves the step time, the strongest first."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from explorer.report.common import Document, Keys, question_line, table

_BAR = 24
_LEAST = 5e-4  # below it an elasticity prints as zero


def draw(document: Document) -> RenderableType:
    """Everything that a `sensitivity/1` document says."""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold green"),
        rows_table(document["rows"]),
    )


def rows_table(rows: list[Document]) -> Table:
    """One row a parameter, the strongest first; those without effect are counted."""
    ordered = sorted(rows, key=lambda row: -abs(row["elasticity"]))
    shown = [row for row in ordered if abs(row["elasticity"]) >= _LEAST]
    idle = len(ordered) - len(shown)
    caption = "Elasticity: per cent of step time for one per cent of the parameter, active set held."
    caption += f" {idle} parameters do nothing here." if idle else ""
    words = ("parameter", "", "active")
    drawn = table("What the step depends on", "parameter", "value", "elasticity", "", "active", left=words)
    drawn.caption = caption
    most = max((abs(row["elasticity"]) for row in shown), default=1.0)
    for row in shown:
        length = max(1, round(_BAR * abs(row["elasticity"]) / most))
        sign = "green" if row["elasticity"] < 0 else "red"
        drawn.add_row(
            row["parameter"], _value(row["value"]), f"{row['elasticity']:+.3f}",
            Text(("-" if row["elasticity"] < 0 else "+") * length, style=sign, no_wrap=True, overflow="crop"),
            str(row["active"] or ""),
        )  # fmt: skip
    return drawn


def _value(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
