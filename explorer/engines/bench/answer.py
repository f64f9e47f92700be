"""The answer of `meshwright bench`: what was measured beside what is predicted, run by run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from explorer.calibration.served import undrafted
from explorer.documents import Document, Schema, layout_entry, plain, versions
from explorer.engines.bench.entries import run_entry, subject_entry
from explorer.engines.bench.fields import Unusable
from explorer.engines.bench.predicted import RATE, TPOT, TTFT, Prediction, serve_predictions
from explorer.engines.bench.reading import Results
from explorer.engines.bench.run import BatchRun, ForwardRun, Run, ServeRun
from explorer.engines.bench.stepped import (
    DECODE_STEP,
    FORWARD,
    LAST_TTFT,
    PREFILL_STEP,
    batch_prediction,
    forward_prediction,
)
from explorer.engines.bench.subject import Options, Subject, subject_of
from explorer.fidelity.runs import Interval
from hw.errors import MeshwrightError

_NO_LAYOUT: Final = {"layout": None, "layout_text": None}
_LINES: Final = 3  # of a note that name the runs it is about


@dataclass(frozen=True)
class Measured:
    """A run of a file, and the number of its subject among all, None where it is not predicted."""

    results: Results
    run: Run
    subject: int | None
    prediction: Prediction | None
    reason: str | None

    @property
    def binding(self) -> str | None:
        """What binds, where it is predicted."""
        return None if self.prediction is None else self.prediction.binding


@dataclass(frozen=True)
class Comparison:
    """A quantity of one run, by its number: measured, predicted with the 80 % range; `error`: predicted over measured,
    less one; `inside`: whether the measured value is in the range."""

    run: int
    quantity: str
    unit: str
    measured: float
    predicted: float | None
    low: float | None
    high: float | None
    error: float | None
    inside: bool | None


@dataclass(frozen=True)
class Errors:
    """One quantity over all runs that are predicted: medians of |error| and of error, and how many are inside."""

    quantity: str
    comparisons: int
    median_absolute: float
    median: float
    inside: int


@dataclass(frozen=True)
class Bench:
    """Files of results beside predictions. `options` is None where nothing was to be predicted."""

    files: tuple[Results, ...]
    options: Options | None
    subjects: tuple[Subject, ...]
    runs: tuple[Measured, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every quantity that was measured, in order of the runs."""
        return tuple(row for number, run in enumerate(self.runs) for row in _compared(number, run))

    def document(self) -> Document:
        """The `bench/1` document."""
        alike = len({subject.layout for subject in self.subjects}) == 1
        only = self.subjects[0] if alike else None
        comparisons = self.comparisons
        return {
            "schema": str(Schema.BENCH),
            "request": {
                "files": [results.path.name for results in self.files],
                "hardware": None if self.options is None else self.options.asked.hardware,
                "engine": None if self.options is None else self.options.engine,
            },
            **(_NO_LAYOUT if only is None else layout_entry(only.layout, only.request.model)),
            "versions": versions(),
            "notes": list(_notes(self)),
            "subjects": [subject_entry(subject) for subject in self.subjects],
            "runs": [
                run_entry(number, seen.results, seen.run, seen.subject, seen.binding)
                for number, seen in enumerate(self.runs)
            ],
            "comparisons": plain(comparisons),
            "errors": plain(tuple(_errors(comparisons))),
        }


def bench(files: Sequence[Results], options: Options | None) -> Bench:
    """Predict every run of files that can be: with the options, or as the files say what ran.

    A run that cannot be predicted stands as measured, and a note of the document says why.
    """
    subjects: dict[tuple[str, ...], Subject] = {}
    numbers: list[int | str] = []
    runs = [run for _, run in _all(files)]
    for run in runs:
        try:
            if options is None:
                raise Unusable("no prediction was asked for: give --hardware, and what ran")
            subject = subject_of(run, options)
            _predictable(run, subject)
        except MeshwrightError as reason:
            numbers.append(str(reason))
            continue
        subjects.setdefault(subject.key, subject)
        numbers.append(list(subjects).index(subject.key))
    known = tuple(subjects.values())
    found = dict(_predictions(known, runs, numbers))
    return Bench(tuple(files), options, known, tuple(_measured(files, numbers, found)))


def _all(files: Iterable[Results]) -> Iterator[tuple[Results, Run]]:
    return ((results, run) for results in files for run in results.runs)


def _measured(
    files: Sequence[Results], numbers: Sequence[int | str], found: dict[int, Prediction | str]
) -> Iterator[Measured]:
    for i, ((results, run), number) in enumerate(zip(_all(files), numbers, strict=True)):
        known = found.get(i, number)
        if isinstance(known, Prediction) and isinstance(number, int):
            yield Measured(results, run, number, known, None)
        else:
            yield Measured(results, run, None, None, str(known))


def _predictable(run: Run, subject: Subject) -> None:
    """Raise Unusable with the reason why a run of clients is not predicted as this subject."""
    if not isinstance(run, ServeRun):
        return
    if run.concurrency is None:
        raise Unusable(
            "requests came at a rate, and nothing says how many were in flight: add their mean latency (e2el)"
        )
    reason = undrafted(run.accept_length, subject.request)
    if reason is not None:
        raise Unusable(reason)


def _predictions(
    subjects: Sequence[Subject], runs: Sequence[Run], numbers: Sequence[int | str]
) -> Iterator[tuple[int, Prediction | str]]:
    """By the number of the run: its prediction, or why there is none."""
    for number, subject in enumerate(subjects):
        mine = [(i, run) for i, run in enumerate(runs) if numbers[i] == number]
        clients = [(i, run) for i, run in mine if isinstance(run, ServeRun)]
        if clients:
            predicted = serve_predictions(subject, [run for _, run in clients])
            yield from zip((i for i, _ in clients), predicted, strict=True)
        for i, run in mine:
            if not isinstance(run, ServeRun):
                yield i, _stepped(subject, run)


def _stepped(subject: Subject, run: BatchRun | ForwardRun) -> Prediction | str:
    try:
        return forward_prediction(subject, run) if isinstance(run, ForwardRun) else batch_prediction(subject, run)
    except MeshwrightError as reason:
        return str(reason)


def _compared(number: int, seen: Measured) -> Iterator[Comparison]:
    predicted = {} if seen.prediction is None else seen.prediction.quantities
    for quantity, unit, measured in _quantities(seen.run):
        if measured is None:
            continue
        found: Interval | None = predicted.get(quantity)
        if found is None:
            yield Comparison(number, quantity, unit, measured, None, None, None, None, None)
            continue
        error, inside = found.value / measured - 1.0, found.low <= measured <= found.high
        yield Comparison(number, quantity, unit, measured, found.value, found.low, found.high, error, inside)


def _quantities(run: Run) -> tuple[tuple[str, str, float | None], ...]:
    """Name, unit and measured value of what a run is compared by."""
    if isinstance(run, ServeRun):
        return (TTFT, "s", run.ttft.mean), (TPOT, "s", run.tpot.mean), (RATE, "tokens/s", run.rate)
    if isinstance(run, ForwardRun):
        return ((FORWARD, "s", run.seconds),)
    names = (LAST_TTFT, TPOT) if run.served else (PREFILL_STEP, DECODE_STEP)
    return (names[0], "s", run.prefill), (names[1], "s", run.step)


def _errors(comparisons: Sequence[Comparison]) -> Iterator[Errors]:
    known: dict[str, list[Comparison]] = {}
    for row in comparisons:
        if row.error is not None:
            known.setdefault(row.quantity, []).append(row)
    for quantity, rows in known.items():
        errors = np.array([row.error for row in rows], np.float64)
        inside = sum(bool(row.inside) for row in rows)
        yield Errors(quantity, len(rows), float(np.median(np.abs(errors))), float(np.median(errors)), inside)


def _notes(found: Bench) -> Iterator[str]:
    """Why values were left out or not predicted, a line for each reason; then what was assumed of the subjects."""
    about: dict[tuple[str, str], list[int]] = {}
    for results in found.files:
        for value in results.left_out:
            about.setdefault((results.path.name, f"left out: {value.reason}"), []).append(value.line)
    for seen in found.runs:
        if seen.reason is not None:
            about.setdefault((seen.results.path.name, f"not predicted: {seen.reason}"), []).append(seen.run.origin.line)
    for (file, reason), lines in about.items():
        more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
        named = ", ".join(map(str, lines[:_LINES]))
        yield f"{file} line{'s' if len(lines) > 1 else ''} {named}{more}: {reason}"
    yield from dict.fromkeys(note for s in found.subjects for note in (*s.request.model.notes, *s.notes))
