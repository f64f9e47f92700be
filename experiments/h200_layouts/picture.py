"""Predicted against measured in one picture: all points, and the errors of those held out by layout."""

import pathlib
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from experiments.h200_layouts.points import in_words
from experiments.h200_layouts.predict import Predicted
from explorer.report.pictures.style import BLUE, GREEN, GREY, PALE, PURPLE, RED, plain, short

_COLOURS = (BLUE, GREEN, PURPLE, RED)
_BOUND = 8.0  # per cent


def write(found: Predicted, path: pathlib.Path) -> None:
    """Write the picture to a file."""
    figure = drawn(found)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)


def drawn(found: Predicted) -> Figure:
    """The picture."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    models = sorted({p.shape.slice.model for p in found.points})
    colours = dict(zip(models, _COLOURS, strict=False))
    _against(left, found, colours)
    _errors(right, found, colours)
    held = int((~found.fitted).sum())
    figure.suptitle(
        f"Steps of our programs on H200s: {len(found.points)} points, {held} of them held out of the fit",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    return figure


def _against(axes: Axes, found: Predicted, colours: Mapping[str, str]) -> None:
    """Predicted over measured, both in milliseconds; what was fitted to is hollow."""
    ends = np.array([found.measured.min() / 1.2, found.measured.max() * 1.2]) * 1e3
    axes.fill_between(ends, ends * (1 - _BOUND / 100), ends * (1 + _BOUND / 100), color=PALE, linewidth=0)
    for model, colour in colours.items():
        mine = np.array([p.shape.slice.model == model for p in found.points])
        for fits in (False, True):
            here = mine & (found.fitted == fits)
            axes.scatter(
                found.measured[here] * 1e3, found.after[here] * 1e3, s=18, linewidths=0.8, edgecolors=colour,
                facecolors="none" if fits else colour, label=f"{model}, fitted to" if fits else model, zorder=2,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms", ylabel="predicted, ms")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    axes.legend(fontsize=7, frameon=False)
    plain(axes)


def _errors(axes: Axes, found: Predicted, colours: Mapping[str, str]) -> None:
    """Error of each point that was held out, a line a layout."""
    rows: dict[str, list[int]] = defaultdict(list)
    for number, point in enumerate(found.points):
        if not found.fitted[number]:
            rows[f"{in_words(point.shape.gpus)}: {point.shape.layout}"].append(number)
    axes.axvspan(-_BOUND, _BOUND, color=PALE, linewidth=0)
    axes.axvline(0.0, color=GREY, linewidth=0.6)
    for line, numbers in enumerate(rows.values()):
        off = 100 * (found.after[numbers] / found.measured[numbers] - 1.0)
        colour = [colours[found.points[n].shape.slice.model] for n in numbers]
        axes.scatter(off, line + np.linspace(-0.25, 0.25, len(off)), s=14, c=colour, zorder=2)
    axes.set_yticks(range(len(rows)), [short(name, 34) for name in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("predicted over measured, per cent off")
    plain(axes)
