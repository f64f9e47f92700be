"""Fits the curves of article 000's engine to the claims that are marked `fit`.

    python -m experiments.article_fit            prints the figures and how each row comes out
    python -m experiments.article_fit --write    and writes hw/curves/b200@article.toml

Under a minute on two cores. No `check` row is read (a test says so).
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from experiments.article_fit.parameters import FREE, SET
from experiments.article_fit.solve import Outcome, solve
from hw.compat import use_compilation_cache
from hw.figures import CURVES, unit_of

FILE: Final = CURVES / "b200@article.toml"
_DIGITS: Final = 4
_HEAD: Final = """\
# The engine of article 000 on 16 B200s, where it is another than the public tables of its kernels: fitted to the rows
# of the claims that are marked `fit`, from the tables' figures. Written by `python -m experiments.article_fit --write`:
# do not edit.

inherits = "b200"
"""


def main(write: Annotated[bool, typer.Option("--write", help="Write the curve file.")] = False) -> None:
    """Fit, print, and perhaps write."""
    use_compilation_cache()
    found = solve()
    console = Console(width=140)
    console.print(_figures(found))
    console.print(_rows(found))
    if write:
        FILE.write_text(_file(found), encoding="utf-8")


def _figures(found: Outcome) -> Table:
    table = Table("figure", "table", "fitted", "claims", title="Figures", title_justify="left")
    sources = {path: free.claims for free in FREE for path in free.paths}
    for path, value in found.values.items():
        table.add_row(path, f"{found.before[path]:.4g}", f"{value:.4g}", sources.get(path, "set"))
    return table


def _rows(found: Outcome) -> Table:
    table = Table("claim", "stated", "fitted", "error", "tolerance", title="Rows", title_justify="left")
    for row, predicted in zip(found.rows, found.predicted, strict=True):
        error = predicted / row.stated - 1.0
        table.add_row(row.claim, f"{row.stated:g}", f"{predicted:.4g}", f"{error:+.1%}", f"{row.tolerance:.0%}")
    return table


def _file(found: Outcome) -> str:
    lines = [_HEAD]
    sources = {path: (f"{free.claims}: {free.why}") for free in FREE for path in free.paths}
    sources |= {path: why for path, (_, why) in SET.items()}
    for owner in dict.fromkeys(path.split(".")[0] for path in found.values):
        lines += [f"[{owner}]", *_entries(found.values, sources, owner), ""]
    return "\n".join(lines)


def _entries(values: dict[str, float], sources: dict[str, str], owner: str) -> Sequence[str]:
    return [
        f'{path.partition(".")[2]} = {{ value = {value:.{_DIGITS}g}, unit = "{unit_of(path.split(".")[1])}", '
        f'provenance = "fitted", source = "article 000, claims {sources[path]}" }}'
        for path, value in values.items()
        if path.split(".")[0] == owner
    ]


if __name__ == "__main__":
    sys.exit(typer.run(main))
