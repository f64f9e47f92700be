"""The candidates of a plan: how fast against how much they hold."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from explorer.report.common import span
from explorer.report.pictures.style import BLUE, GREY, RED, heading, plain, short


def candidates(document: Mapping[str, Any], figure: Figure) -> None:
    """Step time against the KV capacity of the instance; the best is marked, what does not fit is hollow."""
    figure.set_size_inches(9, 5.4)
    axes = figure.subplots()
    best = document["best"]["layout_text"]
    for fits, marker, label in ((True, "o", "fits"), (False, "x", "does not fit")):
        points = [c for c in document["candidates"] if c["feasible"] is fits and c["layout_text"] != best]
        if points:
            axes.scatter(
                [c["step_seconds"] * 1e3 for c in points],
                [c["memory"]["kv_tokens_instance"] / 1e6 for c in points],
                marker=marker, s=36, color=BLUE if fits else GREY, label=label, zorder=2,
            )  # fmt: skip
    x, y = document["best"]["step_seconds"] * 1e3, document["best"]["memory"]["kv_tokens_instance"] / 1e6
    label = f"best by {document['objective']} (range {span(document['best']['step_seconds_range'])} ms)"
    axes.scatter([x], [y], marker="*", s=220, color=RED, label=label, zorder=3)
    axes.annotate(short(best), (x, y), xytext=(10, 8), textcoords="offset points", fontsize=8, color=RED)
    axes.set_xlabel("step, ms")
    axes.set_ylabel("KV capacity of the instance, million tokens")
    axes.margins(0.15)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    plain(axes)
    heading(figure, "Layouts: step time against KV capacity", document)
