"""Results of benchmarks as tables: what was measured beside what is predicted, run by run."""

from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document, Keys, ms, number
from explorer.report.sheet import Sheet

_SHOWN: Final = 40
_NAMES: Final[Mapping[str, str]] = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "output_rate": "output",
    "forward": "forward pass",
    "prefill_step": "prompts",
    "decode_step": "decode step",
    "last_ttft": "last TTFT",
}


def draw(document: Document) -> RenderableType:
    """Everything that a `bench/1` document says."""
    parts: list[RenderableType] = [Text(", ".join(document["request"]["files"]), style="dim")]
    for index, subject in enumerate(document["subjects"]):
        parts += [Text(subject_line(index, subject), style="dim"), Keys(subject["layout_text"], style="bold green")]
    parts += [Text(line, style="bold") for line in error_lines(document)]
    return Group(*parts, comparisons_table(document))


def subject_line(index: int, subject: Document) -> str:
    """What ran, in one line."""
    drafted = f" + {subject['draft']}" if subject["draft"] else ""
    version = f" {subject['engine_version']}" if subject["engine_version"] else ""
    said = "" if subject["source"] == "options" else " (as the server said)"
    machine = f"{subject['gpus']} x {subject['hardware']}"
    return f"{index}: {subject['model']}{drafted} | {machine} | engine {subject['engine']}{version}{said}"


def error_lines(document: Document) -> list[str]:
    """The median error of each quantity."""
    return [
        f"{_NAMES[e['quantity']]}: median error {100 * e['median_absolute']:.1f} % ({100 * e['median']:+.1f} %), "
        f"{e['inside']} of {e['comparisons']} in the 80 % range"
        for e in document["errors"]
    ]


def comparisons_table(document: Document) -> Sheet:
    """A row for each quantity of each run, in the order of the files."""
    rows = document["comparisons"]
    hidden = len(rows) - _SHOWN
    drawn = Sheet(
        "Measured beside predicted", "run", "requests x prompt + answer", "quantity", "measured", "predicted",
        "80 % range", "error %", "inside", "binding", left=("requests x prompt + answer", "quantity", "binding"),
        spare=("run", "inside", "80 % range", "binding"),
        caption=f"{hidden} more (--json)." if hidden > 0 else "Times in ms, rates in tokens a second.",
    )  # fmt: skip
    last = None
    for row in rows[:_SHOWN]:
        run = document["runs"][row["run"]]
        name, binding = (run["name"], run["binding"] or NOTHING) if row["run"] != last else ("", "")
        last = row["run"]
        inside = NOTHING if row["inside"] is None else "yes" if row["inside"] else "no"
        error = NOTHING if row["error"] is None else f"{100 * row['error']:+.1f}"
        drawn.add(
            str(row["run"]), name, _NAMES[row["quantity"]], value(row, "measured"), value(row, "predicted"),
            f"{value(row, 'low')} to {value(row, 'high')}" if row["predicted"] is not None else NOTHING,
            error, inside, binding, style="yellow" if row["inside"] is False else "",
        )  # fmt: skip
    return drawn


def value(row: Document, which: str) -> str:
    """A quantity in its unit: milliseconds, or tokens a second."""
    return ms(row[which]) if row["unit"] == "s" else number(row[which])
