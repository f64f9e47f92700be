"""When the layers of a step run: what the main stream does, what the gather stream does, who waits for whom."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from explorer.report.pictures.style import GATHER, KINDS, WAIT, heading, plain

_ZOOM = 7  # positions of the detail
_LANES = {"main": 2.0, "wait": 1.0, "gather": 0.0}
_HEIGHT = 0.72
_MATTERS = 0.05  # share of the step from which a kind of layer belongs into the detail
_VISIBLE = 1e-6  # ms; a shorter wait is rounding
_LEGIBLE = 0.045  # share of the axis that a label needs


def timeline(document: Mapping[str, Any], figure: Figure) -> None:
    """Above a few layers by name, below the whole step."""
    positions = document["timeline"]
    figure.set_size_inches(11, 5.4)
    detail, whole = figure.subplots(2, 1)
    colours = _colours(positions)
    first = _representative(positions)
    shown = positions[first : first + _ZOOM]
    window = (shown[0]["start"] * 1e3, shown[-1]["end"] * 1e3)
    _lanes(detail, positions, colours, window)
    _label(detail, positions)
    _lanes(whole, positions, colours, (0.0, positions[-1]["end"] * 1e3))
    detail.set_title(f"{shown[0]['name']} to {shown[-1]['name']}", loc="left", fontsize=9)
    whole.set_title("the whole step", loc="left", fontsize=9)
    whole.axvspan(*window, color="black", alpha=0.08, zorder=0)
    step = document["step_seconds"] * 1e3
    heading(figure, f"Step of {document['layout_text']}: {step:.2f} ms", document)
    named = {kind: colour for kind, colour in colours.items() if colour != KINDS[-1]}
    keys = [Patch(color=colour, label=kind) for kind, colour in named.items()]
    keys += [Patch(color=KINDS[-1], label="other")] if len(named) < len(colours) else []
    if any(position["gather_start"] is not None for position in positions):
        keys += [Patch(color=GATHER, label="weight gather"), Patch(color=WAIT, label="main waits for weights")]
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _spent(positions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each kind of layer on the main stream, the longest in all first."""
    spent: dict[str, float] = {}
    for position in positions:
        spent[position["layer_kind"]] = spent.get(position["layer_kind"], 0.0) + position["end"] - position["start"]
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def _colours(positions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A colour for each kind of layer; the last one is shared by the shortest."""
    return {kind: KINDS[min(i, len(KINDS) - 1)] for i, kind in enumerate(_spent(positions))}


def _representative(positions: Sequence[Mapping[str, Any]]) -> int:
    """Where a stretch begins that shows most of the kinds that matter; among equals the one nearest the middle."""
    spent = _spent(positions)
    matter = {kind for kind, seconds in spent.items() if seconds > _MATTERS * sum(spent.values())}
    middle = len(positions) / 2 - _ZOOM / 2

    def worth(i: int) -> tuple[int, float]:
        return (len(matter & {p["layer_kind"] for p in positions[i : i + _ZOOM]}), -abs(i - middle))

    return max(range(max(len(positions) - _ZOOM, 0) + 1), key=worth)


def _lanes(
    axes: Axes, positions: Sequence[Mapping[str, Any]], colours: Mapping[str, str], window: tuple[float, float]
) -> None:
    """Main work, waits and gathers on three lanes, in the milliseconds of the window."""
    before = 0.0
    detail = len(positions) * (window[1] - window[0]) / (positions[-1]["end"] * 1e3) < 2 * _ZOOM
    for position in positions:
        start, end = position["start"], position["end"]
        _bar(axes, "main", start, end, colours[position["layer_kind"]], detail)
        _bar(axes, "wait", before, start, WAIT, detail)
        before = end
        if position["gather_start"] is not None:
            _bar(axes, "gather", position["gather_start"], position["gather_end"], GATHER, detail)
    axes.set_xlim(*window)
    axes.set_yticks([lane + _HEIGHT / 2 for lane in _LANES.values()], list(_LANES))
    axes.set_ylim(-0.15, max(_LANES.values()) + 1)
    axes.set_xlabel("ms from the start of the step", fontsize=8)
    axes.tick_params(labelsize=8)
    plain(axes)


def _bar(axes: Axes, lane: str, start: float, end: float, colour: str, edges: bool) -> None:
    """A stretch of a lane, from and to in seconds."""
    edge, width = ("white", 0.8) if edges else ("none", 0.0)
    span = (start * 1e3, (end - start) * 1e3)
    if span[1] > _VISIBLE:
        axes.broken_barh([span], (_LANES[lane], _HEIGHT), facecolors=colour, edgecolors=edge, linewidth=width)


def _label(axes: Axes, positions: Sequence[Mapping[str, Any]]) -> None:
    """The number of the layer in its bar and in the bar of its gather, where there is room."""
    low, high = axes.get_xlim()
    for position in positions:
        spans = [("main", position["start"], position["end"])]
        if position["gather_start"] is not None:
            spans.append(("gather", position["gather_start"], position["gather_end"]))
        for lane, start, end in spans:
            middle = (start + end) / 2 * 1e3
            if (end - start) * 1e3 > _LEGIBLE * (high - low) and low < middle < high:
                text = position["name"].removeprefix("layer ")
                colour = "white" if lane == "main" else "black"
                axes.text(middle, _LANES[lane] + _HEIGHT / 2, text, ha="center", va="center", fontsize=8, color=colour)
