"""The audit of a layout as a question and a document: what the cost model says of a step beside what its program does.

It needs no machine: FLOPs and bytes do not depend on one, and hosts and domains only on what a user says of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from explorer.documents import Document, Schema, layout_entry, precision_entry, versions
from explorer.request import (
    MOST_GPUS,
    MOST_REQUESTS,
    captured,
    fitting_context,
    on_host,
    verifying_model,
    whole,
)
from layouts.audit import FLOPS_TOLERANCE, Audit, Row
from layouts.audit import audit as audit_step
from layouts.enumerate import checked
from layouts.layout import Layout
from layouts.load import Load
from layouts.models.forms import Forms
from layouts.models.load import load_forms
from layouts.models.model import Model
from layouts.rules import Site
from layouts.text import parse


@dataclass(frozen=True)
class AuditRequest:
    """A decode step that can be traced: a model with its arithmetic, GPUs without figures, a load."""

    model: Model
    forms: Forms
    gpus: int
    gpus_per_host: int
    domain: int
    context: int
    concurrency: int
    verify_width: int
    graphs: Float[np.ndarray, " sizes"] = field(repr=False)

    @property
    def load(self) -> Load:
        """The load as the cost of a decode step takes it."""
        return Load(
            context=np.float64(self.context),
            concurrency=np.float64(self.concurrency),
            verify=np.float64(self.verify_width),
            graph_sizes=self.graphs,
        )

    def layout(self, text: str) -> Layout:
        """A layout in text form, checked against every rule; raises a MeshwrightError that names the nearest valid."""
        site = Site(self.model, self.gpus, self.gpus_per_host, self.domain)
        return checked(parse(text, self.gpus, self.model), site, text)


@dataclass(frozen=True)
class Audited:
    """A request and the audit of one of its layouts."""

    request: AuditRequest
    layout: Layout
    found: Audit

    @property
    def agrees(self) -> bool:
        """Whether every exchange is the same to the byte, and FLOPs within the tolerance."""
        return self.found.agrees

    @property
    def differences(self) -> tuple[str, ...]:
        """A sentence for each exchange that is not the same on both sides, and one for FLOPs; none where all agrees."""
        return tuple(_differences(self.found))

    def document(self) -> Document:
        """The `audit/1` document."""
        found, model = self.found, self.request.model
        return {
            "schema": str(Schema.AUDIT),
            "request": _echo(self.request),
            "precision": precision_entry(model),
            "versions": versions(),
            "notes": [*model.notes, *found.notes],
            **layout_entry(self.layout, model),
            "agrees": self.agrees,
            "differences": list(self.differences),
            "exchanges": [_exchange(row) for row in found.rows],
            "flops": {
                "model": _count(found.model_flops),
                "program": found.program_flops,
                "error": found.flops_error,
                "tolerance": FLOPS_TOLERANCE,
            },
            "priced_only": [{"layer_kind": block, "ops": list(ops)} for block, ops in found.priced_only.items()],
            "left_out": list(found.left_out),
        }


def make_audit_request(
    model: str,
    gpus: int,
    *,
    context: float = 8192,
    concurrency: float = 64,
    verify_width: int | None = None,
    draft: str | None = None,
    precision: str | None = None,
    gpus_per_host: int = 8,
    domain: int | None = None,
) -> AuditRequest:
    """Check every option; those left out are as in `explorer.request.make_request`, and a domain is a host.

    Raises MeshwrightError with one line: the option, its value, the rule, what would do.
    """
    loaded, width = verifying_model(model, draft, precision, verify_width)
    host = whole("gpus-per-host", gpus_per_host, None, 1, MOST_GPUS)
    return AuditRequest(
        model=on_host(loaded, host),
        forms=load_forms(model),
        gpus=whole("gpus", gpus, None, 1, MOST_GPUS),
        gpus_per_host=host,
        domain=whole("domain", domain, host, 1, MOST_GPUS),
        context=fitting_context(loaded, context),
        concurrency=whole("concurrency", concurrency, None, 1, MOST_REQUESTS),
        verify_width=width,
        graphs=captured(loaded, width),
    )


def audit(request: AuditRequest, layout: Layout) -> Audited:
    """Trace the step of a valid layout at full size, without devices, and hold the cost model against it."""
    return Audited(request, layout, audit_step(request.model, request.forms, layout, request.load))


def _count(value: Fraction) -> int | float:
    """A count as JSON holds it: whole where it is one."""
    return value.numerator if value.denominator == 1 else float(value)


def _exchange(row: Row) -> Document:
    return {
        "kind": str(row.kind),
        "ranks": row.size,
        "bytes": _count(row.payload),
        "model": row.model,
        "program": row.program,
        "ops": list(row.names),
        "agrees": row.agrees,
    }


def _differences(found: Audit) -> Iterator[str]:
    for row in found.rows:
        if not row.agrees:
            names = f" ({', '.join(row.names)})" if row.names else ""
            what = f"{row.kind} of {float(row.payload):,.10g} bytes over {row.size} ranks{names}"
            yield f"{what}: {row.model} a step in the model, {row.program} in the program"
    if abs(found.flops_error) > FLOPS_TOLERANCE:
        side = "more" if found.flops_error > 0 else "fewer"
        yield f"FLOPs: the model has {100 * abs(found.flops_error):.3g} % {side} than the program"


def _echo(request: AuditRequest) -> Document:
    draft = request.model.draft
    return {
        "model": request.model.name,
        "draft": None if draft is None else draft.name,
        "gpus": request.gpus,
        "gpus_per_host": request.gpus_per_host,
        "domain": request.domain,
        "context": request.context,
        "concurrency": request.concurrency,
        "verify_width": request.verify_width,
    }
