"""Pictures of documents, drawn without a display."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from explorer.report.pictures.bars import comparison, elasticities, memories, memory
from explorer.report.pictures.candidates import candidates
from explorer.report.pictures.timeline import timeline

Document = Mapping[str, Any]

# Schema of a document to the pictures that can be drawn of it, by file name.
PICTURES: Final[Mapping[str, Mapping[str, Callable[[Document, Figure], None]]]] = {
    "plan/1": {"candidates.png": candidates, "memory.png": memories},
    "cost/1": {"timeline.png": timeline},
    "memory/1": {"memory.png": memory},
    "compare/1": {"comparison.png": comparison},
    "sensitivity/1": {"sensitivity.png": elasticities},
}
_DPI: Final = 144


def save(document: Document, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw what there is of a document into a folder; returns the paths written."""
    written = []
    for name, draw in PICTURES[document["schema"]].items():
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        draw(document, figure)
        path = folder / name
        figure.savefig(path, dpi=_DPI)
        written.append(path)
    return written
