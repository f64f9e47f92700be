"""Two layouts side by side: one table a class of rows, with the larger side plain to see."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document, facts, gib, ms, number, question_line
from explorer.report.sheet import Sheet
from hw.units import GB

_TITLES = {
    "conserved": "Conserved: state that goes with requests, a GPU and step",
    "not conserved": "Not conserved: weights that every GPU reads, a step",
    "moved": "Moved: communication, a GPU and step",
    "time": "Time of a step",
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


def class_table(name: str, rows: list[Document]) -> Sheet:
    """The rows of one class in which either side has something; bytes in GB where they move, in GiB where they stay."""
    head = ("", "A", "B", "B - A", "unit", "cause, as A / B")
    drawn = Sheet(_TITLES.get(name, name), *head, left=("", "unit"), wraps=head[-1:], spare=head[-1:])
    for row in rows:
        if row["a"] or row["b"]:
            write, unit = _scaled(row["unit"], name)
            drawn.add(
                row["name"], write(row["a"]), write(row["b"]), _signed(row["difference"], write), unit, row["cause"]
            )
    return drawn


def _scaled(unit: str, name: str) -> tuple[Callable[[float | None], str], str]:
    """How a row's numbers are written, and in which unit."""
    if unit == "s":
        return ms, "ms"
    if unit == "bytes":
        return (gib, "GiB") if name == "memory" else (_gb, "GB")
    return number, unit


def _gb(count: float | None) -> str:
    return NOTHING if count is None else f"{count / GB:,.3f}"


def _signed(value: float | None, write: Callable[[float | None], str]) -> str:
    return ("+" if value and value > 0 else "") + write(value)
