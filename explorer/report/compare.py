"""Two layouts side by side: one table a class of rows, with the larger side plain to see."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from explorer.report.common import NOTHING, Document, facts, gib, ms, number, question_line, table
from hw.units import GB

_TITLES = {
    "conserved": "Conserved: state that goes with requests",
    "not conserved": "Not conserved: weights that every GPU reads",
    "moved": "Moved: communication",
    "time": "Time by kind of layer",
    "memory": "Memory of one GPU",
}


def draw(document: Document) -> RenderableType:
    """Everything that a `compare/1` document says, one table a class in the document's order."""
    classes = dict.fromkeys(row["class"] for row in document["rows"])
    return Group(
        Text(question_line(document), style="dim"),
        facts([(side.upper(), document[side]["layout_text"]) for side in ("a", "b")]),
        *(class_table(name, [row for row in document["rows"] if row["class"] == name]) for name in classes),
    )


def class_table(name: str, rows: list[Document]) -> Table:
    """The rows of one class; bytes in GB where they move, in GiB where they stay."""
    drawn = table(_TITLES.get(name, name), "", "A", "B", "B - A", "unit", "cause", left=("", "unit", "cause"))
    for row in rows:
        scale = _scaled(row["unit"], name)
        drawn.add_row(row["name"], *(_shown(row[key], *scale) for key in ("a", "b")),
                      _shown(row["difference"], *scale, sign=True), scale[1], str(row.get("cause") or ""))  # fmt: skip
    return drawn


def _scaled(unit: str, name: str) -> tuple[Any, str]:
    """How a row's numbers are written, and in which unit."""
    stays = name == "memory"
    writers = {
        "s": (ms, "ms"),
        "bytes": (gib, "GiB") if stays else (lambda count: f"{count / GB:,.2f}", "GB"),
    }
    return writers.get(unit, (number, unit))


def _shown(value: float | None, write: Any, unit: str, sign: bool = False) -> str:
    if value is None:
        return NOTHING
    return ("+" if sign and value > 0 else "") + write(value)


