"""Colours that mean the same in every picture, and titles that say what was asked."""

from collections.abc import Mapping
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from explorer.report.common import question_line

# Okabe and Ito's colours, which the colour-blind tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"
SKY, YELLOW, GREY, PALE = "#56b4e9", "#f0e442", "#777777", "#d9d9d9"
KINDS: Final = (BLUE, GREEN, PURPLE, YELLOW, SKY, GREY)
WAIT, GATHER = RED, ORANGE
GROUP_COLOURS: Final[Mapping[str, str]] = {
    "start": GREY,
    "weights": BLUE,
    "staging": ORANGE,
    "state": GREEN,
    "kv": SKY,
    "reserve": PALE,
}


def heading(figure: Figure, title: str, document: Mapping[str, Any]) -> None:
    """A title, and under it the question."""
    figure.suptitle(f"{title}\n{question_line(document)}", fontsize=10, x=0.01, ha="left")


def plain(axes: Axes) -> None:
    """No frame but the axes, a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)


def short(text: str, width: int = 44) -> str:
    """A layout's text broken after commas, so that labels stay narrow."""
    lines = [""]
    for part in text.replace(",", ",\n").splitlines():
        lines = [*lines[:-1], lines[-1] + part] if len(lines[-1]) + len(part) <= width else [*lines, part]
    return "\n".join(lines)
