"""Subjects and runs as the `bench/1` document holds them."""

import math
from typing import Any, Final

import numpy as np

from explorer.calibration.observed import file_date
from explorer.documents import Document, layout_entry, plain, precision_entry
from explorer.engines.bench.reading import Results
from explorer.engines.bench.run import BatchRun, ForwardRun, Run, ServeRun, Times
from explorer.engines.bench.subject import Subject

_LOAD: Final = (
    "request_rate", "concurrency", "completed", "input_tokens", "output_tokens", "shortest", "accept_length",
    "duration_seconds", "ttft", "tpot", "itl",
)  # fmt: skip


def subject_entry(subject: Subject) -> Document:
    """An entry of `subjects`."""
    request = subject.request
    return {
        "source": subject.source,
        "model": request.model.name,
        "draft": None if request.model.draft is None else request.model.draft.name,
        "hardware": request.machine.name,
        "gpus": request.gpus,
        "precision": precision_entry(request.model),
        "verify_width": request.verify_width,
        "engine": subject.engine,
        "engine_version": subject.engine_version,
        "chunk": subject.limits.chunk,
        **layout_entry(subject.layout, request.model),
    }


def run_entry(number: int, results: Results, run: Run, subject: int | None, binding: str | None) -> Document:
    """An entry of `runs`: null of what a kind of run does not have."""
    origin = run.origin
    about = {
        "run": number,
        "file": results.path.name,
        "line": origin.line,
        "kind": _kind(run),
        "name": _name(run),
        "subject": subject,
        "binding": binding,
        "backend": origin.backend,
        "engine_version": origin.engine_version,
        "model": origin.model,
        "date": origin.date or file_date(results.path),
    }
    return {**about, **plain(_load(run))}


def _kind(run: Run) -> str:
    if isinstance(run, ServeRun):
        return "serve"
    return "forward" if isinstance(run, ForwardRun) else "batch_server" if run.served else "batch"


def _name(run: Run) -> str:
    """What ran in a few words: requests, tokens of a prompt and of an answer."""
    if isinstance(run, ForwardRun):
        return f"{run.name}: {len(run.rows)} x {np.mean(run.rows):.0f} at {np.mean(run.context):.0f}"
    requests = run.batch if isinstance(run, BatchRun) else run.concurrency
    shown = "?" if requests is None else f"{requests:.4g}"
    return f"{shown} x {run.input_tokens:.0f} + {run.output_tokens:.0f}"


def _load(run: Run) -> dict[str, Any]:
    """What was asked of the server and all latencies; null of what a kind of run does not have."""
    if isinstance(run, ServeRun):
        rate = run.request_rate
        asked = (run.concurrency, run.completed, run.input_tokens, run.output_tokens)
        seen = (run.shortest, run.accept_length, run.duration, run.ttft, run.tpot, run.itl)
        return dict(zip(_LOAD, (None if rate is None or math.isinf(rate) else rate, *asked, *seen), strict=True))
    if isinstance(run, BatchRun):
        asked = (float(run.batch), run.batch, float(run.input_tokens), float(run.output_tokens))
        return dict(zip(_LOAD, (None, *asked, 1.0, run.accept_length, None, *[Times()] * 3), strict=True))
    return dict(zip(_LOAD, (None, float(len(run.rows)), *[None] * 6, *[Times()] * 3), strict=True))
