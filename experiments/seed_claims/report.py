"""Rows drawn for a terminal: the table, counts by seed and kind, and what fails."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.seed_claims.evaluation import Row

_WIDTH = 170  # of a table that is written to a file


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print everything; expects at least one row."""
    console = console or _console()
    console.print(_table(rows))
    console.print(_counts(rows))
    failed = [row for row in rows if row.passed is False]
    console.print(f"failed: {', '.join(row.claim.id for row in failed) or 'none'}")


def outcome(row: Row) -> str:
    """passed, failed, not reached; context for a row that is given or has no tolerance."""
    if row.passed is not None:
        return "passed" if row.passed else "failed"
    return "context" if row.claim.use == "given" else "not reached"


def _console() -> Console:
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="Claims of the articles", title_justify="left")
    for name in ("id", "use", "quantity", "expected", "predicted", "error", "tolerance", "pass"):
        table.add_column(name, justify="right" if name == "error" else "left", overflow="fold")
    for row in rows:
        claim = row.claim
        quantity = f"{claim.quantity}, {claim.unit}" + (f" [dim]({row.note})[/dim]" if row.note else "")
        mark = {"passed": "yes", "failed": "[bold red]no[/bold red]"}.get(outcome(row), "")
        cells = (claim.value, _shown(row.predicted), _deviation(row), claim.tolerance, mark)
        table.add_row(claim.id, claim.use, quantity, *cells)
    return table


def _shown(predicted: float | str | None) -> str:
    if predicted is None or isinstance(predicted, str):
        return "-" if predicted is None else predicted
    return f"{predicted:.0f}" if float(predicted).is_integer() else f"{predicted:.4g}"


def _deviation(row: Row) -> str:
    """Relative deviations in percent; absolute ones (small against the unit) as they are."""
    if row.error is None:
        return ""
    relative = row.claim.tolerance == "0" or "%" in row.claim.tolerance or "bound" in row.claim.tolerance
    return f"{row.error:+.1%}" if relative else f"{row.error:+.2g}"


def _counts(rows: Sequence[Row]) -> Table:
    table = Table(title="Outcome by seed, kind and use", title_justify="left")
    outcomes = ("passed", "failed", "not reached", "context")
    for name in ("seed", "kind", "use", *outcomes):
        table.add_column(name)
    counts = Counter((row.claim.seed, row.claim.kind, row.claim.use, outcome(row)) for row in rows)
    for key in dict.fromkeys(sorted((seed, kind, use) for seed, kind, use, _ in counts)):
        table.add_row(*key, *(str(counts[(*key, name)]) for name in outcomes))
    return table
