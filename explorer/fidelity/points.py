"""Rows of `layout_points.csv`: one quantity a row, the layout as text."""

from types import MappingProxyType
from typing import Final

from explorer.fidelity import names
from explorer.fidelity.cells import Cells, RowError
from explorer.fidelity.runs import Run

NEEDED: Final = ("id", "source", "model", "hardware", "gpus", "layout", "phase", "quantity", "value", "unit")
OPTIONAL: Final = (
    *("input_tokens", "output_tokens", "context", "concurrency", "verify_width", "accept_length", "note"),
    *("engine", "gemm", "moe", "kv"),
)
_PHASES: Final = ("serve", "decode", "prefill")
# what one unit is in SI base units; a rate of a GPU stays tokens a second
_UNITS: Final = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "tok/s": 1.0, "tok/s/GPU": 1.0})


def read_row(cells: Cells, run_id: str, source: str) -> Run:
    """The run of one row; raises RowError with the column at fault."""
    model, phase, unit = cells.needed("model"), cells.needed("phase"), cells.needed("unit")
    if phase not in _PHASES:
        raise RowError(f"phase is {phase[:40]!r}, not one of {', '.join(_PHASES)}")
    if unit not in _UNITS:
        raise RowError(f"unit is {unit[:40]!r}, not one of {', '.join(_UNITS)}")
    value = cells.number("value")
    if value is None:
        raise RowError("value is blank or 0")
    accepted = cells.number("accept_length")
    if accepted is not None and accepted < 1:
        raise RowError(f"accept_length is {accepted:g}, and a step yields one token at least")
    return Run(
        id=run_id,
        source=source,
        model=names.model(model),
        stated_model=model,
        hardware=names.hardware(cells.needed("hardware")),
        engine=names.engine(cells.text("engine") or "", cells.text("source") or ""),
        gemm=cells.text("gemm"),
        moe=cells.text("moe"),
        kv=cells.text("kv"),
        phase=phase,
        input_tokens=cells.count("input_tokens"),
        output_tokens=cells.count("output_tokens"),
        context=cells.count("context"),
        concurrency=cells.count("concurrency"),
        shortest=names.shortest(cells.text("source") or ""),
        layout=cells.needed("layout"),
        stated_gpus=cells.count("gpus"),
        verify_width=cells.count("verify_width"),
        accept_length=accepted,
        measured=MappingProxyType({cells.needed("quantity"): value * _UNITS[unit]}),
    )


def quantities(cells: Cells) -> tuple[str, ...]:
    """The quantity that a row is about, readable or not."""
    return (cells.text("quantity") or "unknown",)
