"""Why claims on time fail, and the table of them for the documentation."""

import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache

from experiments.seed_claims.evaluation import Row

FILE = pathlib.Path(__file__).with_name("reasons.toml")
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "fidelity.md"


@cache
def reasons() -> Mapping[str, str]:
    """The reason by claim."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def markdown(rows: Sequence[Row]) -> str:
    """How many claims on time hold, and a table of those that do not. Raises KeyError for one without a reason."""
    timed = [row for row in rows if row.claim.kind == "time" and row.passed is not None]
    checked = [row for row in timed if row.claim.use == "check"]
    failed = [row for row in timed if not row.passed]
    lines = [
        f"{sum(bool(row.passed) for row in checked)} of {len(checked)} claims on time that are kept for checking hold, "
        f"and {sum(bool(row.passed) for row in timed if row.claim.use == 'fit')} of "
        f"{sum(row.claim.use == 'fit' for row in timed)} that the engine's curves are fitted to.",
        "",
        "| claim | quantity | stated | predicted | tolerance | why |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, failed)])


def _line(row: Row) -> str:
    claim = row.claim
    predicted = row.predicted if isinstance(row.predicted, str) else f"{row.predicted:.4g}"
    stated = f"{claim.value} {claim.unit}"
    cells = (claim.id, claim.quantity, stated, predicted, claim.tolerance, reasons()[claim.id])
    return "| " + " | ".join(cells) + " |"
