"""Audits of layouts on a site whose domain holds all GPUs, so that every exchange may be chosen."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from layouts.audit import FLOPS_TOLERANCE, Audit, audit
from layouts.enumerate import Space, checked
from layouts.layout import Layout
from layouts.load import Load
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model
from layouts.models.model import Model
from layouts.rules import Site
from layouts.text import parse, text_of

# Ways to cut; what else a layout chooses are alternatives under the same cut.
CUTS = ("replicas", "pp", "attn_dp", "attn_tp", "dcp", "ep", "expert_tp", "moe_dp", "weight_shard")
CHOICES = ("dispatch", "dcp_backend")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with its arithmetic, whose layouts are audited."""

    model: Model
    forms: Forms

    def site(self, gpus: int = 16) -> Site:
        return Site(self.model, gpus, gpus_per_host=8, domain=gpus)

    def layout(self, text: str, gpus: int = 16) -> Layout:
        return checked(parse(text, gpus, self.model), self.site(gpus), text)

    def audit(self, layout: Layout, verify: int = 1, context: int = 4096, requests: int | None = None) -> Audit:
        """If not told, at 16 requests of each GPU, so that every cut of up to 16 ranks divides the rows."""
        load = Load(np.float64(context), np.float64(requests or 16 * layout.gpus), np.float64(verify))
        return audit(self.model, self.forms, layout, load)

    def wrong(self, layout: Layout, found: Audit) -> list[str]:
        """What an audit found, with the layout's text; nothing where both sides are the same."""
        where = f"{self.model.name} {text_of(layout, self.model)}"
        rows = [f"{where}: {row}" for row in found.rows if not row.agrees]
        off = abs(found.flops_error) > FLOPS_TOLERANCE
        return rows + ([f"{where}: FLOPs off by {found.flops_error:+.3%}"] if off else [])


@functools.cache
def subject(name: str, layers: int | None = None) -> Subject:
    """A preset, or its first layers."""
    model = load_model(name)
    return Subject(dataclasses.replace(model, layers=model.layers[:layers]), load_forms(name))


def swept(space: Space) -> Iterator[Layout]:
    """Of every cut as many layouts as it takes to see each exchange that it may choose; vocabularies by turns."""
    names = (*CUTS, *CHOICES, "vocab_tp")
    table = np.stack([space.columns[name] for name in names], axis=1)
    cuts, of = np.unique(table[:, : len(CUTS)], axis=0, return_inverse=True)
    for cut in range(len(cuts)):
        rows = np.flatnonzero(of.ravel() == cut)
        seen: set[tuple[int, int]] = set()
        for row in np.roll(rows, -cut % len(rows)):
            chosen = set(enumerate(table[row, len(CUTS) : -1].tolist()))
            if not chosen <= seen:
                seen |= chosen
                yield space.layout(int(row))
