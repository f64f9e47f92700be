"""Cases as a table on the terminal and as the generated page: predicted beside reported."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.sheet import Sheet

Rows = Sequence[Mapping[str, Any]]
_HELD: Final = ("MEM", "CAP", "OOM")
_SCORE: Final = {True: "yes", False: "NO", None: "-"}


def draw(rows: Rows) -> RenderableType:
    """Every figure, then the cases that pass, by kind."""
    drawn = Sheet(
        "Cases",
        *("case", "kind", "quantity", "reported", "predicted", "error", "pass", "why"),
        left=("case", "kind", "quantity", "why"),
        wraps=("why",),
        spare=("why", "kind"),
        caption="Nothing is held against a figure whose inputs are unknown (-).",
    )
    for row in rows:
        drawn.add(*_cells(row), row["reason"] or "", style="red" if row["pass"] is False else "")
    return Group(drawn, *(Text(line, style="bold") for line in counts(rows)))


def counts(rows: Rows) -> tuple[str, ...]:
    """Cases that pass of those with known inputs, by kind and for the kinds of memory together."""
    kinds = tuple(dict.fromkeys(str(row["kind"]) for row in rows))
    lines = [_count(kind, rows, (kind,)) for kind in kinds]
    held = [kind for kind in _HELD if kind in kinds]
    return (*lines, _count(" + ".join(held), rows, held)) if len(held) > 1 else tuple(lines)


def page(rows: Rows) -> str:
    """The table as Markdown: one row a figure, with its source."""
    head = ("case", "what", "quantity", "reported", "predicted", "error", "pass")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    seen = ""
    for row in rows:
        case, _, *cells = _cells(row)
        shown = (f"[{case}]({row['source']})", f"{row['kind']}: {_plain(row['title'])}") if case != seen else ("", "")
        seen = case
        lines.append(f"| {' | '.join((*shown, *cells))} |")
    reasons = [
        f"- {row['id']}, {row['quantity']}: {_plain(row['reason'])}"
        for row in rows
        if row["reason"] and row["pass"] is not True
    ]
    return "\n".join(
        [*(f"- {line}" for line in counts(rows)), "", *lines, "", "Not predicted, or not near:", "", *reasons]
    )


def _count(name: str, rows: Rows, kinds: Sequence[str]) -> str:
    scores: dict[str, list[bool]] = {}
    for row in rows:
        if row["kind"] in kinds:
            scores.setdefault(row["id"], []).extend([] if row["pass"] is None else [row["pass"]])
    known = [score for score in scores.values() if score]
    unknown = len(scores) - len(known)
    return f"{name}: {sum(map(all, known))} of {len(known)} cases pass" + (
        f", {unknown} more unknown" if unknown else ""
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    unit = f" {row['unit']}" if row["unit"] else ""
    reported, predicted = f"{_value(row['reported'])}{unit}", "-"
    if row["predicted"] is not None:
        predicted = f"{_value(row['predicted'])}{unit}"
    return row["id"], row["kind"], row["quantity"], reported, predicted, _apart(row), _SCORE[row["pass"]]


def _apart(row: Mapping[str, Any]) -> str:
    error, whole = row["error"], row["tolerance"] >= 1
    if row["margin"] is not None:
        return f"ahead by {100 * row['margin']:.1f} %"
    if error is None:
        return ""
    return f"{error:+.0f}" if whole or not row["reported"] else f"{100 * error:+.2f} %"


def _value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
