"""Bars: memory by group, two layouts side by side, elasticities."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from explorer.report.common import GROUPS, by_group
from explorer.report.pictures.style import BLUE, GREEN, GROUP_COLOURS, ORANGE, RED, heading, plain, short
from hw.units import GIB

_LEGIBLE = 0.04  # share of the axis that a label needs
_MOST = 20
_CANDIDATES = 4
_LEAST_SECONDS = 2e-5  # what is shorter, or smaller, would be no more than a line
_LEAST_BYTES = GIB // 20


def memory(document: Mapping[str, Any], figure: Figure) -> None:
    """One GPU by group, with what is free at start as a line."""
    figure.set_size_inches(10, 2.8)
    axes = figure.subplots()
    stacked(axes, {document["layout_text"]: by_group(document["lines"])}, document["free_bytes"])
    fits = "fits" if document["feasible"] else "does not fit"
    heading(figure, f"Memory of one GPU: {fits}", document)


def memories(document: Mapping[str, Any], figure: Figure) -> None:
    """The same for the first candidates of a plan."""
    shown = document["candidates"][:_CANDIDATES]
    figure.set_size_inches(10, 1.8 + 0.8 * len(shown))
    bars = {candidate["layout_text"]: by_group(candidate["memory"]["lines"]) for candidate in shown}
    stacked(figure.subplots(), bars, document["best"]["memory"]["free_bytes"])
    heading(figure, f"Memory of one GPU: best by {document['objective']}, and those that follow", document)


def stacked(axes: Axes, bars: Mapping[str, Mapping[str, float]], size: float) -> None:
    """Horizontal bars of bytes by group, the first on top, in GiB; `size` is drawn as a line."""
    reach = max(size, *(sum(max(size, 0) for size in groups.values()) for groups in bars.values())) / GIB
    for row, groups in enumerate(bars.values()):
        left = 0.0
        for group in [g for g in GROUPS if g in groups]:
            width = max(groups[group], 0) / GIB  # a pool that is short of memory has a negative size
            axes.barh(row, width, left=left, color=GROUP_COLOURS[group], edgecolor="white",
                      label=GROUPS[group] if row == 0 else None)  # fmt: skip
            if width > _LEGIBLE * reach:
                axes.text(left + width / 2, row, f"{width:.1f}", ha="center", va="center", fontsize=8,
                          color="white" if group in ("start", "weights") else "black")  # fmt: skip
            left += width
    axes.axvline(size / GIB, color="black", linewidth=1.4, linestyle="--")
    axes.text(size / GIB, 1.01, f"free at start {size / GIB:.1f} GiB", ha="right", va="bottom", fontsize=8,
              transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_yticks(range(len(bars)), [short(name, 28) for name in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, reach * 1.02)
    axes.set_xlabel("GiB")
    plain(axes)
    axes.figure.legend(loc="outside lower center", ncols=len(GROUPS), fontsize=8, frameon=False)


def comparison(document: Mapping[str, Any], figure: Figure) -> None:
    """Time by kind of layer of two layouts, in milliseconds, and their memory line by line, in GiB."""
    figure.set_size_inches(11, 6.0)
    rows = document["rows"]
    time = [row for row in rows if row["class"] == "time" and max(row["a"], row["b"]) > _LEAST_SECONDS]
    held = [row for row in rows if row["class"] == "memory" and row["unit"] == "bytes"]
    held = [row for row in held if max(row["a"], row["b"]) > _LEAST_BYTES]
    for axes, chosen, scale, unit in zip(figure.subplots(1, 2), (time, held), (1e-3, GIB), ("ms", "GiB"), strict=True):
        _pairs(axes, chosen, scale, unit)
    keys = [
        Patch(color=colour, label=f"{side.upper()}: {document[side]['layout_text']}")
        for side, colour in (("a", BLUE), ("b", ORANGE))
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=1, fontsize=8, frameon=False)
    heading(figure, "Two layouts: time and memory of one GPU", document)


def _pairs(axes: Axes, rows: Sequence[Mapping[str, Any]], scale: float, unit: str) -> None:
    """Two bars a row, A above B."""
    for offset, side, colour in ((-0.2, "a", BLUE), (0.2, "b", ORANGE)):
        values = [(row[side] or 0.0) / scale for row in rows]
        axes.barh([i + offset for i in range(len(rows))], values, height=0.38, color=colour)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    plain(axes)


def elasticities(document: Mapping[str, Any], figure: Figure) -> None:
    """The strongest parameters, those that shorten the step to the left."""
    rows = sorted(document["rows"], key=lambda row: -abs(row["elasticity"]))[:_MOST]
    figure.set_size_inches(9, 1.4 + 0.28 * len(rows))
    axes = figure.subplots()
    values = [row["elasticity"] for row in rows]
    axes.barh([row["parameter"] for row in rows], values, color=[GREEN if value < 0 else RED for value in values])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.set_xlabel("per cent of step time for one per cent more of the parameter")
    plain(axes)
    heading(figure, f"What the step of {document['layout_text']} depends on", document)
