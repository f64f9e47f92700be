"""A scoreboard as one JSON document."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from explorer.fidelity.metrics import Scores
from explorer.fidelity.repeats import AMBIGUOUS, Noise
from explorer.fidelity.score import Scoreboard, ScoreRow, SetScore


def document(board: Scoreboard) -> dict[str, Any]:
    """Sets, rows, noise floors and what was left out, in JSON types; described in docs/fidelity.md."""
    return {
        "sets": [set_document(each) for each in board.sets],
        "rows": [row_document(row) for row in board.rows],
        "noise_floor": _noise(board.noise),
        "noise_floor_unambiguous": _noise(board.quiet_noise),
        "duplicates": {"repeated": board.repeated, "restated": board.restated},
        "ambiguous": {"runs": board.ambiguous, "factor": AMBIGUOUS},
        "repaired": board.repaired,
    }


def set_document(scored: SetScore) -> dict[str, Any]:
    """One set, flat; scores are fractions, null where nothing was scored."""
    counts = {"name": scored.name, "n": scored.n, "scored": scored.scored, "refused": scored.refused}
    figures = {f.name: None if scored.scores is None else getattr(scored.scores, f.name) for f in fields(Scores)}
    return {**counts, **figures, "ranking": scored.ranking, "pairs": scored.pairs}


def row_document(row: ScoreRow) -> dict[str, Any]:
    """One row; `refused` is the reason, null for a row that is scored."""
    range_ = row.predicted
    return {
        "id": row.id,
        "set": row.set,
        "quantity": row.quantity,
        "measured": row.measured,
        "predicted": None if range_ is None else range_.value,
        "low": None if range_ is None else range_.low,
        "high": None if range_ is None else range_.high,
        "error": row.error,
        "refused": row.refused,
        "repaired": None if row.run is None else row.run.repaired,
    }


def _noise(floors: Mapping[str, Noise]) -> dict[str, Any]:
    return {quantity: asdict(floor) for quantity, floor in floors.items()}
