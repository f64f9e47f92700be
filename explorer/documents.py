"""What every JSON document has in common: its schema, an echo of the question, the versions that answered it."""

import dataclasses
import importlib.metadata
import math
import platform
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np

from explorer.request import Request
from layouts.layout import Layout
from layouts.models.model import Model
from layouts.text import text_of

Document = dict[str, Any]
_UNINSTALLED: Final = "source tree"


class Schema(StrEnum):
    """Names of the documents; the number rises when a key changes its meaning."""

    PLAN = "plan/1"
    COST = "cost/1"
    MEMORY = "memory/1"
    SENSITIVITY = "sensitivity/1"
    COMPARE = "compare/1"
    AUDIT = "audit/1"
    RUN = "run/1"
    TRACE = "trace/1"
    CALIBRATION = "calibration/1"
    SERVICE = "service/1"
    BENCH = "bench/1"
    CHECK = "check/1"
    LOG = "log/1"
    EXPORT = "export/1"


def heading(schema: Schema, request: Request) -> Document:
    """The keys with which every document begins: schema, request, precision by component, objective, versions."""
    return {
        "schema": str(schema),
        "request": _echo(request),
        "precision": precision_entry(request.model),
        "objective": str(request.objective),
        "versions": versions(),
        "notes": list(request.model.notes),
    }


def precision_entry(model: Model) -> Document:
    """The format of each component."""
    return {component: stored.name for component, stored in model.precision.formats.items()}


def layout_entry(layout: Layout, model: Model) -> Document:
    """A layout as documents hold it: resolved values, and the text that parses back to it."""
    return {"layout": layout.as_dict(), "layout_text": text_of(layout, model)}


def versions() -> dict[str, str]:
    """Versions of what computed a result."""
    try:
        own = importlib.metadata.version("meshwright")
    except importlib.metadata.PackageNotFoundError:
        own = _UNINSTALLED
    return {"meshwright": own, "jax": importlib.metadata.version("jax"), "python": platform.python_version()}


def plain(value: Any) -> Any:
    """A result as JSON holds it: records as objects, sequences as lists, and null for what is no finite number."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _echo(request: Request) -> Document:
    machine, draft = request.machine, request.model.draft
    return {
        "model": request.model.name,
        "draft": None if draft is None else draft.name,
        "hardware": machine.name,
        "gpus": request.gpus,
        "gpus_per_host": int(machine.gpus_per_host),
        "domain": int(machine.domain),
        "phase": str(request.phase),
        "context": request.context,
        "concurrency": request.concurrency,
        "verify_width": request.verify_width,
        "accept_length": request.accept_length,
        "max_tpot_seconds": request.max_tpot,
        "mem_fraction": request.mem_fraction,
        "extra_slots": request.extra_slots,
        "chunk": request.chunk,
        "seed": request.seed,
    }
