"""Runs parted so that a fit can be tested on what it has not seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from explorer.fidelity.runs import Run


@dataclass(frozen=True)
class Fold:
    """Runs of one model, and those of all others."""

    model: str
    fitted: tuple[Run, ...]
    held_out: tuple[Run, ...]


def by_model(runs: Sequence[Run]) -> Iterator[Fold]:
    """For each model, its runs held out and the rest to fit to. Names of the same layers and sizes are one model."""
    for model in dict.fromkeys(run.model for run in runs):
        fitted = tuple(run for run in runs if run.model != model)
        yield Fold(model, fitted, tuple(run for run in runs if run.model == model))
