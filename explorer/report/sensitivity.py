"""Elasticities as a table: what moves the step time, the strongest first."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import Document, Keys, ms, number, question_line
from explorer.report.sheet import Sheet
from hw.units import format_rate, format_seconds

_BAR = 20
_SHOWN = 18
_LEAST = 5e-4  # below it an elasticity prints as zero


def draw(document: Document) -> RenderableType:
    """Everything that a `sensitivity/1` document says."""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold green"),
        Text(f"step {ms(document['step_seconds'])} ms", style="bold"),
        rows_table(document["rows"]),
    )


def rows_table(rows: list[Document]) -> Sheet:
    """One row a parameter, the strongest first; those left out are counted."""
    ordered = sorted(rows, key=lambda row: -abs(row["elasticity"]))
    moving = [row for row in ordered if abs(row["elasticity"]) >= _LEAST]
    shown = moving[:_SHOWN]
    caption = "Per cent of step time for one per cent more of the parameter, active set held."
    left_out = [f"{len(moving) - len(shown)} weaker"] if len(moving) > len(shown) else []
    left_out += [f"{len(ordered) - len(moving)} without effect"] if len(ordered) > len(moving) else []
    caption += f" Left out: {', '.join(left_out)} (--json)." if left_out else ""
    drawn = Sheet(
        "What the step depends on", "parameter", "value", "elasticity", "", "active",
        left=("parameter", ""), wraps=("active",), spare=("", "value"), caption=caption,
    )  # fmt: skip
    most = max((abs(row["elasticity"]) for row in shown), default=1.0)
    for row in shown:
        drawn.add(
            row["parameter"], _value(row["value"], row["unit"]), f"{row['elasticity']:+.3f}",
            _bar(row["elasticity"], most), row["active"],
        )  # fmt: skip
    return drawn


def _bar(elasticity: float, most: float) -> Text:
    sign, style = ("-", "green") if elasticity < 0 else ("+", "red")
    return Text(sign * max(1, round(_BAR * abs(elasticity) / most)), style=style)


def _value(value: float, unit: str) -> str:
    """The value with its unit, in the size that people write it."""
    if unit in ("B/s", "FLOP/s"):
        return format_rate(value, unit)
    if unit == "s":
        return format_seconds(value)
    return f"{number(value)} {unit}".rstrip()
