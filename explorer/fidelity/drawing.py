"""A scoreboard document drawn for people: on a terminal, and as the tables of docs/fidelity.md."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group
from rich.table import Table

Document = Mapping[str, Any]
_NOTHING: Final = "-"
_HEADER: Final = ("set", "n", "scored", "refused", "MAPE", "median", "bias", "p90", "ranking (pairs)", "coverage")
_NOISE: Final = ("repeated inputs", "groups", "runs", "median", "p90", "largest factor")
_REASONS: Final = 12  # refusals listed; the document has all of them


def draw(document: Document) -> Group:
    """Scores by set, the noise floor, why rows were refused, and what was left out."""
    parts: list[Any] = [_table("Predictions against public runs", _HEADER, _score_rows(document))]
    parts.append(_table("Noise floor: repeated inputs, off the median of their group", _NOISE, _noise_rows(document)))
    refused = list(_reasons(document))
    if refused:
        parts.append(_table("Refused", ("rows", "reason"), refused))
    return Group(*parts, *left_out(document))


def markdown(document: Document) -> str:
    """The same scores, noise floor and counts as Markdown."""
    tables = (_markdown(_HEADER, _score_rows(document)), _markdown(_NOISE, _noise_rows(document)))
    counts = "\n".join(f"- {line}" for line in left_out(document))
    reasons = _markdown(("rows", "refused because"), [(n, r.replace("|", "\\|")) for n, r in _reasons(document)])
    return "\n\n".join((*tables, counts, reasons))


def left_out(document: Document) -> Iterator[str]:
    """What was counted once, set apart or read otherwise, a line each."""
    copies, apart = document["duplicates"], document["ambiguous"]
    yield (
        f"{copies['repeated']} rows repeat another and {copies['restated']} state the same run otherwise: "
        f"each run is counted once."
    )
    yield (
        f"{apart['runs']} runs have the inputs of another whose TPOT is apart by more than a factor of "
        f"{apart['factor']:g}: ambiguous, scored apart."
    )
    yield f"{document['repaired']} runs are read otherwise than stated (see `repaired` of a row)."


def _score_rows(document: Document) -> list[tuple[str, ...]]:
    return [
        (
            *(str(each[name]) for name in ("name", "n", "scored", "refused")),
            *(_percent(each[name]) for name in ("mape", "median")),
            _percent(each["bias"], "+"),
            _percent(each["p90"]),
            f"{_percent(each['ranking'])} ({each['pairs']})" if each["pairs"] else _NOTHING,
            _percent(each["coverage"]),
        )
        for each in document["sets"]
    ]


def _noise_rows(document: Document) -> list[tuple[str, ...]]:
    named = [(quantity, floor) for quantity, floor in document["noise_floor"].items()]
    named += [(f"{quantity}, unambiguous", floor) for quantity, floor in document["noise_floor_unambiguous"].items()]
    return [
        (
            *(name, str(floor["groups"]), str(floor["runs"])),
            *(_percent(floor["median"]), _percent(floor["p90"]), f"{floor['factor']:.2f}"),
        )
        for name, floor in named
    ]


def _reasons(document: Document) -> Iterator[tuple[str, str]]:
    counts = Counter(row["refused"] for row in document["rows"] if row["refused"] is not None)
    for reason, rows in counts.most_common(_REASONS):
        yield str(rows), reason
    if len(counts) > _REASONS:
        rest = sum(counts.values()) - sum(n for _, n in counts.most_common(_REASONS))
        yield str(rest), f"{len(counts) - _REASONS} other reasons (see --json)"


def _percent(value: float | None, sign: str = "") -> str:
    return _NOTHING if value is None else f"{value:{sign}.1%}"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in header:
        words = name in ("set", "reason", _NOISE[0])
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    return table


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
