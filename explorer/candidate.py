"""One layout of a plan, described: time, rates, memory and what binds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from explorer.documents import Document, layout_entry, plain
from explorer.evaluate import Tables
from explorer.ledger import Ledger, ledger_of
from explorer.priced import Priced, priced
from explorer.request import Request
from hw.time import CollectiveTerms, ComputeTerms
from layouts.layout import Layout

_RESOURCES = {"memory": "HBM bandwidth", "compute": "tensor cores", "link": "scale-up link", "nic": "NIC"}


@dataclass(frozen=True)
class Candidate:
    """A valid layout, exactly evaluated. `request` is the plan's, at the concurrency that the candidate runs.

    `late`: the latency limit is broken. `certified`: nothing else of the enumerated space is better than the best.
    """

    request: Request
    layout: Layout
    step_seconds: float
    step_seconds_range: tuple[float, float]
    tokens_per_second: float
    binding: str
    certified: bool
    late: bool
    ledger: Ledger

    @property
    def feasible(self) -> bool:
        return self.ledger.feasible and not self.late

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds of one output token of a request; None in prefill."""
        return None if self.request.prefill else self.step_seconds / self.request.accept_length

    def document(self) -> Document:
        """An entry of the `plan/1` document."""
        tpot = self.tpot_seconds
        held = self.ledger.document()
        return {
            **layout_entry(self.layout, self.request.model),
            "concurrency": self.request.concurrency,
            "step_seconds": self.step_seconds,
            "step_seconds_range": plain(self.step_seconds_range),
            "tpot_seconds": tpot,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_gpu": self.tokens_per_second / self.request.gpus,
            "tokens_per_second_per_user": None if tpot is None else 1.0 / tpot,
            "feasible": self.feasible,
            "binding": self.binding,
            "certified": self.certified,
            "memory": {name: value for name, value in held.items() if name in _memory_keys(held)},
        }


def _memory_keys(held: Document) -> set[str]:
    """Those of the ledger's own, without the heading that the plan has itself."""
    heading = {"schema", "request", "precision", "objective", "versions", "notes", "layout", "layout_text"}
    return set(held) - heading


def candidates(
    request: Request, tables: Tables, chosen: Sequence[tuple[Layout, float]], certified: bool
) -> tuple[Candidate, ...]:
    """Describe layouts at the concurrency of each, in the order given."""
    return tuple(
        describe(priced(replace(request, concurrency=int(requests)), layout, tables), certified)
        for layout, requests in chosen
    )


def describe(found: Priced, certified: bool) -> Candidate:
    """What a plan says of a priced layout."""
    request, layout = found.request, found.layout
    if request.prefill:
        # pp chunks are in flight, and one leaves the pipeline every 1/pp of a pass
        tokens = layout.replicas * request.chunk * layout.pp
    else:
        tokens = (request.concurrency or 1) * request.accept_length
    tpot = found.step / request.accept_length
    return Candidate(
        request=request,
        layout=layout,
        step_seconds=found.step,
        step_seconds_range=(found.faster, found.slower),
        tokens_per_second=tokens / found.step,
        binding=binding(found),
        certified=certified,
        late=request.max_tpot is not None and tpot > request.max_tpot,
        ledger=ledger_of(found),
    )


def binding(found: Priced) -> str:
    """The resource that most of the step is spent on, with its share: an op counts to the largest part of its time."""
    spent: dict[str, float] = {}
    fields = (ComputeTerms._fields, CollectiveTerms._fields)
    seconds = found.parts.seconds * found.counts * (1.0 - found.table.gathers)
    terms = np.asarray(found.parts.terms)
    for op, total in enumerate(seconds):
        fixed = min(float(terms[op, 0]) * float(found.counts[op]), float(total))
        rest = fields[op >= found.kernels][1 + int(np.argmax(terms[op, 1:]))]
        spent["latency"] = spent.get("latency", 0.0) + fixed
        spent[rest] = spent.get(rest, 0.0) + float(total) - fixed
    spent["waiting for gathered weights"] = float(found.schedule.wait.sum())
    if found.on_host:
        spent = {"CPU control": found.step}
    name, most = max(spent.items(), key=lambda item: item[1])
    return f"{_RESOURCES.get(name, name)}, {100 * most / found.step:.0f} % of the step"
