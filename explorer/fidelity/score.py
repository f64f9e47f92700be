"""Runs held against a predictor: a row for each quantity of each run, and scores by set."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from explorer.fidelity.files import Loaded, Refusal
from explorer.fidelity.metrics import Scores, ranking, scores
from explorer.fidelity.repeats import Noise, ambiguous, distinct, noise_floor, of_ambiguous_configuration
from explorer.fidelity.runs import Interval, Run
from hw.errors import MeshwrightError

Predictor = Callable[[Run], Mapping[str, Interval]]
Progress = Callable[[str, float], None]

ALL: Final = "all"


@dataclass(frozen=True)
class ScoreRow:
    """One quantity of one run: measured, predicted with its 80 % range, or why not. Seconds, or the SI unit.

    `set` is the set that the row counts in by itself; `sets` are all of them. `run` is None where the row of the file
    could not be read.
    """

    id: str
    set: str
    sets: tuple[str, ...]
    quantity: str
    run: Run | None = None
    measured: float | None = None
    predicted: Interval | None = None
    refused: str | None = None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.value / self.measured - 1


@dataclass(frozen=True)
class SetScore:
    """Scores of a set: `n` rows, of which `scored` were predicted and `refused` were not. Fractions; None of no row.

    `ranking` is over `pairs` pairs (see metrics).
    """

    name: str
    n: int
    scored: int
    refused: int
    scores: Scores | None
    ranking: float | None
    pairs: int


@dataclass(frozen=True)
class Scoreboard:
    """Everything that was found out; `noise` of all distinct runs, `quiet_noise` of those that are not ambiguous."""

    sets: tuple[SetScore, ...]
    rows: tuple[ScoreRow, ...]
    noise: Mapping[str, Noise]
    quiet_noise: Mapping[str, Noise]
    repeated: int
    restated: int
    repaired: int
    ambiguous: int


def score(loaded: Loaded, predict: Predictor, progress: Progress = lambda stage, fraction: None) -> Scoreboard:
    """Predict every distinct run and score it. A run that the predictor refuses (MeshwrightError) is counted."""
    found = distinct(loaded.runs)
    unclear, doubtful = ambiguous(found.runs), of_ambiguous_configuration(found.runs)
    rows = [row for refusal in loaded.refused for row in _unread(refusal)]
    for done, (run, apart, doubt) in enumerate(zip(found.runs, unclear, doubtful, strict=True)):
        progress("predicting", done / len(found.runs))
        rows += _rows(run, "ambiguous" if apart else "unstated" if run.unstated else "", doubt, predict)
    quiet = [run for run, apart in zip(found.runs, unclear, strict=True) if not apart]
    return Scoreboard(
        sets=tuple(_sets(rows)),
        rows=tuple(rows),
        noise=noise_floor(found.runs),
        quiet_noise=noise_floor(quiet),
        repeated=found.repeated,
        restated=found.restated,
        repaired=sum(run.repaired is not None for run in found.runs),
        ambiguous=sum(unclear),
    )


def _unread(refusal: Refusal) -> Iterator[ScoreRow]:
    for quantity in refusal.quantities:
        yield ScoreRow(refusal.id, quantity, (quantity, ALL), quantity, refused=refusal.reason)


def _rows(run: Run, apart: str, doubt: bool, predict: Predictor) -> Iterator[ScoreRow]:
    """A row for each measured quantity. `apart`: why the run is scored in a set of its own, if it is; `doubt`: whether
    another load of its configuration is ambiguous."""
    predicted: Mapping[str, Interval] = {}
    reason = None
    try:
        predicted = predict(_blind(run))
    except MeshwrightError as error:
        reason = str(error)
    for quantity, measured in run.measured.items():
        own = f"{quantity} {apart}" if apart else quantity
        sets = (own, ALL) if apart else (own, *(f"{quantity}: {part}" for part in _parts(run, doubt)), ALL)
        value = predicted.get(quantity)
        why = reason or _unusable(quantity, value)
        # a file may be called what a chip or a quantity is called: still one row of the set
        names = tuple(dict.fromkeys(sets))
        yield ScoreRow(run.id, own, names, quantity, run, measured, None if why else value, why)


def _blind(run: Run) -> Run:
    """The run without what was measured: a predictor sees which quantities are asked for, and no figure."""
    return replace(run, measured=MappingProxyType(dict.fromkeys(run.measured, float("nan"))))


def _parts(run: Run, doubt: bool) -> Iterator[str]:
    """The parts of a quantity's set that a run counts in beside the whole."""
    yield run.source
    if run.layout is None:
        yield run.mode
    if not doubt:
        yield "no load ambiguous"
    yield from (run.engine, run.hardware, run.model)


def _unusable(quantity: str, value: Interval | None) -> str | None:
    if value is None:
        return f"{quantity} is not predicted for this run"
    ends = (value.low, value.value, value.high)
    if not (np.isfinite(ends).all() and 0 < value.low <= value.value <= value.high):
        return f"the prediction of {quantity} is {value.value:g} in {value.low:g} to {value.high:g}, which is no range"
    return None


def _sets(rows: Sequence[ScoreRow]) -> Iterator[SetScore]:
    """Quantities first, then what is scored apart, everything, and the parts of each quantity."""
    members: dict[str, list[ScoreRow]] = {}
    for row in rows:
        for name in row.sets:
            members.setdefault(name, []).append(row)
    for name in sorted(members, key=lambda name: (":" in name, name == ALL, " " in name, name)):
        yield _set(name, members[name])


def _set(name: str, rows: Sequence[ScoreRow]) -> SetScore:
    known = [(row.run, row.measured, row.predicted, row.quantity) for row in rows]
    held = [(r, m, p, q) for r, m, p, q in known if r is not None and m is not None and p is not None]
    measured = np.array([m for _, m, _, _ in held])
    predicted, low, high = (np.array([getattr(p, end) for _, _, p, _ in held]) for end in ("value", "low", "high"))
    # a run of which the number of GPUs is unknown is comparable with none but itself
    alike = _numbers((q, _setting(r)) if r.gpus else (q, i) for i, (r, _, _, q) in enumerate(held))
    order, pairs = ranking(measured, predicted, alike, _numbers(r.cut for r, _, _, _ in held))
    found = scores(measured, predicted, low, high)
    return SetScore(name, len(rows), len(held), len(rows) - len(held), found, order, pairs)


def _setting(run: Run) -> tuple[object, ...]:
    """What two runs share whose layouts can be ranked."""
    return (run.model, run.hardware, run.gpus, run.input_tokens, run.output_tokens, run.concurrency, run.phase)


def _numbers(keys: Iterable[object]) -> np.ndarray:
    """The same number for equal keys."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
