"""What was measured beside what is predicted: tables by model, layout and size, the best layouts, and the constants."""

import itertools
import json
import pathlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float
from rich.table import Table

from experiments.h200_layouts.points import fitted, in_words, points, shapes
from experiments.h200_layouts.predict import Predicted, predicted
from experiments.measured import console

HARDWARE: Final = "h200"  # the chip, with the curves of our kernels on it that ship
GAP: Final = 0.05  # a best layout is asked for where the next one takes so much longer
BOUND: Final = 0.08  # of the largest error
MIDDLE: Final = 0.04  # and of the median


@dataclass(frozen=True)
class Choice:
    """Layouts of one question: the fastest as measured and as predicted, and how much longer the next one takes."""

    question: tuple[Any, ...]
    layouts: int
    best: str
    named: str
    gap: float
    lost: float


def show(path: pathlib.Path) -> None:
    """Tables on the console, and a picture beside the results."""
    found = read(path)
    out = console()
    out.print(_by(found, "layout", lambda p: (p.shape.slice.model, f"{p.shape.gpus}: {p.shape.layout}")))
    out.print(_by(found, "load", lambda p: (p.shape.slice.model, f"{p.shape.requests} x {p.shape.verify}")))
    out.print(_best(choices(found)))
    out.print(_constants(found))
    out.print(_every(found))
    out.print("\n".join((*verdict(found), *about(json.loads(path.read_text(encoding="utf-8"))))))
    from experiments.h200_layouts.picture import write

    write(found, path.with_suffix(".png"))


def about(document: Mapping[str, Any]) -> list[str]:
    """The runs that rows are of, and what was noted by hand."""
    of = Counter(row["run"] for row in document["points"].values())
    runs = [
        f"run {number}: {of[number]} rows, {run['date']}, {run['gpus']} x {run['device']}, jax {run['versions']['jax']}"
        f", programs {run.get('programs', 'unknown')}"
        for number, run in enumerate(document["runs"])
    ]
    return [*runs, *(f"- {note}" for note in document.get("notes", ()))]


def read(path: pathlib.Path) -> Predicted:
    """The stored results and their prediction, by the curves that `meshwright run` takes."""
    rows: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["points"]
    every = points(shapes())
    return predicted(every, rows, HARDWARE, fitted(every))


def errors(found: Predicted, held_out: bool = True) -> Float[np.ndarray, " points"]:
    """|predicted / measured - 1| of the points held out, or of those fitted to."""
    off = np.abs(found.after / found.measured - 1.0)
    return off[~found.fitted] if held_out else off[found.fitted]


def verdict(found: Predicted) -> list[str]:
    """The bar, and what was reached: of all points held out, and of those of as many GPUs."""
    asked = [c for c in choices(found) if c.gap > GAP]
    right = sum(c.best == c.named for c in asked)
    held, gpus = ~found.fitted, np.array([point.shape.gpus for point in found.points])
    before = np.abs(found.before / found.measured - 1.0)[held]
    counts, (told, pairs) = sorted({*gpus[held].tolist()}), ordered(found)
    parts = [f"of {in_words(n)}: {_reached(found, held & (gpus == n))}" for n in counts]
    return [
        f"held out: {_reached(found, held)}; bars: median {_percent(MIDDLE)}, all within {_percent(BOUND)}",
        *parts,
        f"by the curves alone: median {_percent(np.median(before))}, largest {_percent(before.max())}",
        f"fitted to: {int(found.fitted.sum())} points; median error {_percent(np.median(errors(found, False)))}",
        f"held out, of two layouts one takes more than {_percent(GAP)} longer: named in {told} of {pairs} pairs",
        f"best layout named right in {right} of {len(asked)} questions with a gap above {_percent(GAP)}",
    ]


def _reached(found: Predicted, those: np.ndarray) -> str:
    off = np.abs(found.after / found.measured - 1.0)[those]
    return (
        f"{len(off)} points; median error {_percent(np.median(off))}, largest {_percent(off.max())}, "
        f"{(off <= BOUND).sum()} within {_percent(BOUND)}"
    )


def choices(found: Predicted) -> list[Choice]:
    """Every question that several layouts were measured for."""
    return [_choice(found, question, np.array(numbers)) for question, numbers in _asked(found).items()]


def ordered(found: Predicted) -> tuple[int, int]:
    """Of two layouts of one question, neither fitted to, one of which takes so much longer that it matters: how often
    it is said to, and how many such pairs there are."""
    right = every = 0
    for numbers in _asked(found).values():
        for a, b in itertools.permutations([n for n in numbers if not found.fitted[n]], 2):
            if found.measured[b] / found.measured[a] - 1.0 > GAP:
                right, every = right + int(found.after[b] > found.after[a]), every + 1
    return right, every


def _asked(found: Predicted) -> dict[tuple[Any, ...], list[int]]:
    """The numbers of a question's points, of those with several."""
    asked: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, point in enumerate(found.points):
        asked[point.question].append(number)
    return {question: numbers for question, numbers in asked.items() if len(numbers) > 1}


def _choice(found: Predicted, question: tuple[Any, ...], numbers: np.ndarray) -> Choice:
    measured, said = found.measured[numbers], found.after[numbers]
    order = np.argsort(measured)
    best, named = int(order[0]), int(np.argmin(said))
    names = [found.points[n].shape.layout for n in numbers]
    gap, lost = measured[order[1]] / measured[best] - 1.0, measured[named] / measured[best] - 1.0
    return Choice(question, len(numbers), names[best], names[named], float(gap), float(lost))


def _by(found: Predicted, title: str, of: Any) -> Table:
    """Errors of the points held out, by whatever `of` says of a point."""
    table = Table("model", title, "points", "median %", "largest %", "bias %", title=f"Held out, by {title}")
    members: dict[tuple[str, str], list[float]] = defaultdict(list)
    for point, said, measured, fits in zip(found.points, found.after, found.measured, found.fitted, strict=True):
        if not fits:
            members[of(point)].append(float(said / measured - 1.0))
    for (model, name), off in sorted(members.items()):
        sizes = np.abs(off)
        figures = (np.median(sizes), sizes.max(), np.median(off))
        table.add_row(model, name, str(len(off)), *(f"{100 * f:.1f}" for f in figures))
    return table


def _best(found: Iterable[Choice]) -> Table:
    """Questions with a clear best layout, and what was named."""
    table = Table("question", "layouts", "measured best", "gap %", "named", "lost %", title="Best layout")
    for choice in found:
        if choice.gap > GAP or choice.lost > GAP:
            model, gpus, requests, verify, context = choice.question
            named = "the same" if choice.best == choice.named else choice.named
            asked = f"{model}, {in_words(gpus)}, {requests} x {verify}, {context:,}"
            gap, lost = f"{100 * choice.gap:.1f}", f"{100 * choice.lost:.1f}"
            table.add_row(asked, str(choice.layouts), choice.best, gap, named, lost)
    return table


def _constants(found: Predicted) -> Table:
    """What the fit moved."""
    table = Table("factor", "value", "moved, sd", "told %", title=f"Fitted to {int(found.fitted.sum())} points")
    for one in found.constants:
        table.add_row(one.name, f"{one.factor:.3f}", f"{one.pull:+.2f}", f"{100 * one.told:.0f}")
    return table


def _every(found: Predicted) -> Table:
    """Every point."""
    table = Table("point", "measured ms", "curves alone ms", "predicted ms", "error %", "", title="Points")
    for number, point in enumerate(found.points):
        times = (found.measured[number], found.before[number], found.after[number])
        off = 100 * (found.after[number] / found.measured[number] - 1.0)
        fits = "fitted to" if found.fitted[number] else ""
        table.add_row(point.key.replace("|", " | "), *(f"{1e3 * t:.3f}" for t in times), f"{off:+.1f}", fits)
    return table


def _percent(share: float | Bool[np.ndarray, ""]) -> str:
    return f"{100 * float(share):.1f} %"
