"""What was measured of peers beside our stored figures and beside what others published, one table an op."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from experiments.measured import console
from experiments.peers import published

Row = Mapping[str, Any]
STORED: Final = pathlib.Path(__file__).parents[1] / "results" / "h200"
RATES: Final = {"tflops": "TFLOP/s", "tb_per_s": "TB/s"}
_UNQUANTISED: Final = {None, "bf16", "bfloat16"}  # rows of weights and pools in fp8 stand beside them
TITLES: Final = {
    "mla_decode": "MLA decode, bf16",
    "kda_step": "KDA decode and verify, float32 state",
    "grouped_gemm": "Grouped GEMM of the routed experts, bf16",
    "paged_attention": "Grouped-query decode, bf16",
}


class Line(NamedTuple):
    """One contender at one shape; `rates` are those of our row, by its time. `seconds` is None if it refused."""

    shape: str
    who: str
    seconds: float | None
    rates: Mapping[str, float]
    of_ours: float | None
    note: str


def lines(op: str, ours: Sequence[Row], peers: Sequence[Row]) -> Iterator[Line]:
    """Ours, XLA's form, each peer and what is published, shape by shape of the peers."""
    for shape in _shapes(op, peers):
        mine = next((row for row in ours if shape.items() <= row.items()), None)
        text = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in shape.items())
        for who, seconds, note in _contenders(op, shape, mine, peers):
            yield Line(text, who, seconds, *_beside(mine, seconds), note)


def _contenders(
    op: str, shape: Mapping[str, int], mine: Row | None, peers: Sequence[Row]
) -> Iterator[tuple[str, float | None, str]]:
    if mine is not None:
        yield "ours", mine["seconds"], str(mine.get("form", ""))
        if "xla_seconds" in mine:
            yield "XLA", mine["xla_seconds"], ""
    for row in peers:
        if (row["op"], row["shape"]) == (op, shape):
            note = row["refused"] if "refused" in row else f"error {row['error']:.1e}, {row['timed']}"
            yield row["peer"], None if "refused" in row else row["seconds"], note
    for other in published.at(op, shape):
        yield other.peer, other.seconds, f"published, {other.chip}: {other.source}"


def _shapes(op: str, peers: Sequence[Row]) -> list[Mapping[str, int]]:
    found: list[Mapping[str, int]] = []
    for row in peers:
        if row["op"] == op and row["shape"] not in found:
            found.append(row["shape"])
    return found


def _beside(mine: Row | None, seconds: float | None) -> tuple[dict[str, float], float | None]:
    """Rates of the same work in other seconds, and how often ours would be done in them."""
    if mine is None or seconds is None:
        return {}, None
    times = seconds / mine["seconds"]
    return {name: mine[name] / times for name in RATES if name in mine}, times


def stated(op: str) -> list[str]:
    """Published figures at shapes that are not ours, a line each."""
    said = []
    for figure in published.figures(op):
        value = f"{1e6 * figure.value:,.0f} us" if figure.quantity == "seconds" else _rate(figure)
        said.append(f"published: {figure.peer}, {figure.chip}, {figure.shape}: {value} ({figure.source})")
    return said


def _rate(figure: published.Figure) -> str:
    return f"{figure.value:,.4g} {RATES[figure.quantity]}"


def show(path: pathlib.Path) -> None:
    """Every op that was measured."""
    document = json.loads(path.read_text(encoding="utf-8"))
    out = console()
    versions = (f"{name} {version}" for name, version in document["versions"].items())
    out.print(f"{document['device']}: {', '.join(versions)}", highlight=False)
    for op, title in TITLES.items():
        stored = STORED / f"{op}.json"
        ours = json.loads(stored.read_text(encoding="utf-8"))["timed"] if stored.exists() else ()
        # rows of pools and weights in fp8 stand beside them
        ours = [
            row for row in ours if row.get("weights", "bf16") == "bf16" and row.get("dtype", "bfloat16") == "bfloat16"
        ]
        table = Table("shape", "who", "us", *RATES.values(), "x ours", "how", title=title)
        last = ""
        for line in lines(op, ours, document["rows"]):
            if line.shape != last:
                table.add_section()
            table.add_row("" if line.shape == last else line.shape, *_cells(line))
            last = line.shape
        out.print(table)
        for text in stated(op):
            out.print(f"- {text}", highlight=False)
    for note in document.get("notes", ()):
        out.print(f"- {note}", highlight=False)


def _cells(line: Line) -> tuple[str, ...]:
    us = "-" if line.seconds is None else f"{1e6 * line.seconds:,.1f}"
    rates = (f"{line.rates[name]:,.3g}" if name in line.rates else "-" for name in RATES)
    times = "-" if line.of_ours is None else f"{line.of_ours:.2f}"
    return line.who, us, *rates, times, line.note
