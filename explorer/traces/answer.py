"""The answer of `meshwright trace`: a recorded step taken apart, beside a prediction where one is asked for."""

import pathlib
from dataclasses import dataclass
from typing import Final

from explorer.costing import Cost
from explorer.documents import Document, Schema, heading, layout_entry, plain, versions
from explorer.traces.analysis import OUTSIDE, Analysis, analyse
from explorer.traces.events import Trace
from explorer.traces.lineup import Line, line_up, named_alike

_NO_LAYOUT: Final = {"layout": None, "layout_text": None}


@dataclass(frozen=True)
class Traced:
    """A trace, what its step is made of, and the prediction that it stands beside, if any."""

    file: str
    trace: Trace
    layer_patterns: tuple[str, ...]
    step_pattern: str | None
    analysis: Analysis
    predicted: Cost | None

    @property
    def lineup(self) -> tuple[Line, ...] | None:
        return None if self.predicted is None else line_up(self.analysis, self.predicted)

    def document(self) -> Document:
        """The `trace/1` document."""
        parts = ("device", "step_seconds", "steps", "time", "streams")
        more = ("layers_found_by", "layer_kinds", "copy_groups", "ops")
        cost, trace = self.predicted, self.trace
        return {
            "schema": str(Schema.TRACE),
            "request": {
                "file": self.file,
                "layer_patterns": list(self.layer_patterns),
                "step_pattern": self.step_pattern,
                "against": None if cost is None else heading(Schema.COST, cost.request)["request"],
            },
            "versions": versions(),
            "notes": [*self._notes()],
            "recording": {
                "format": trace.source,
                "devices": sorted(trace.devices),
                "events": len(trace.events),
                "annotations": len(trace.annotations),
            },
            **{name: plain(getattr(self.analysis, name)) for name in (*parts, *more)},
            **(_NO_LAYOUT if cost is None else layout_entry(cost.layout, cost.request.model)),
            "lineup": plain(self.lineup),
        }

    def _notes(self) -> list[str]:
        found, notes = self.analysis, list[str]()
        if len(self.trace.devices) > 1:
            notes.append(f"the trace has {len(self.trace.devices)} GPUs: this is {found.device} (--device)")
        if found.on_host:
            notes.append("annotations are the host's: they stand where kernels were launched, not where they ran")
        if all(kind.layer_kind == OUTSIDE for kind in found.layer_kinds):
            notes.append("no layers found: name the first kernel of each kind with --layer-pattern NAME=REGEX")
        if self.predicted is not None and not named_alike(found, self.predicted):
            names = ", ".join(kind.layer_kind for kind in self.predicted.layer_kinds)
            notes.append(f"no kind of layer has the name of a predicted one: name them with --layer-pattern ({names})")
        return notes


def answer(
    file: str | pathlib.Path,
    trace: Trace,
    device: int | None = None,
    layer_patterns: tuple[str, ...] = (),
    step_pattern: str | None = None,
    predicted: Cost | None = None,
) -> Traced:
    """Take a trace apart; TraceError for a device, a pattern or a step that it lacks."""
    found = analyse(trace, device, layer_patterns, step_pattern)
    return Traced(pathlib.Path(file).name, trace, layer_patterns, step_pattern, found, predicted)
