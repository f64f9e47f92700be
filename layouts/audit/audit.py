"""The audit: what the cost side says that the program does, held against the program itself."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hw.work import CollectiveKind
from layouts.audit.counts import Counts, Exchanged
from layouts.audit.expected import Expected, Line, expected, step_values
from layouts.audit.traced import traced
from layouts.layout import Layout
from layouts.load import Load
from layouts.models.forms import Forms
from layouts.models.model import Model

FLOPS_TOLERANCE: Final = 1e-3  # relative; collectives are held to the byte
Key = tuple[CollectiveKind, int, Fraction]  # kind, ranks of the group, payload in bytes


@dataclass(frozen=True)
class Row:
    """Exchanges of one kind, group size and payload: how many a step the model and the program have. `names`: the ops
    of the model that they are."""

    kind: CollectiveKind
    size: int
    payload: Fraction
    model: int
    program: int
    names: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return self.model == self.program


@dataclass(frozen=True)
class Audit:
    """A step audited. `lines`: ops of the model as the program should do them; `priced_only`: by block the names of
    those that it does not (none where it has nothing of the block); `left_out` and `notes`: what in the program was not
    counted, and how."""

    rows: tuple[Row, ...]
    model_flops: Fraction
    program_flops: int
    lines: tuple[Line, ...]
    priced_only: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def flops_error(self) -> float:
        """Of the model, relative to the program."""
        return float(self.model_flops / self.program_flops - 1) if self.program_flops else 0.0

    @property
    def agrees(self) -> bool:
        """Whether every exchange is the same to the byte, and FLOPs within the tolerance."""
        return all(row.agrees for row in self.rows) and abs(self.flops_error) <= FLOPS_TOLERANCE


def audit(model: Model, forms: Forms, layout: Layout, load: Load) -> Audit:
    """Trace a decode step at full size without devices, count it, and compare. Takes a second or two."""
    values = step_values(model, layout, load)
    batch, verify, context = (int(values[name]) for name in ("batch", "verify", "context"))
    found = traced(model, forms, layout, batch, verify, context)
    said = expected(model, layout, values)
    return Audit(
        rows=_rows(said, found),
        model_flops=said.flops,
        program_flops=found.total_flops,
        lines=said.lines,
        priced_only=said.priced_only,
        left_out=found.left_out,
        notes=(*found.notes, *_padding(values)),
    )


def _rows(said: Expected, found: Counts) -> tuple[Row, ...]:
    """One row for each key of either side, most bytes first. Sends differ from cut to cut: they are compared in all."""
    model, names = Counter[Key](), dict[Key, dict[str, None]]()
    for line in said.lines:
        if line.kind is not None:
            key = line.kind, line.size, line.payload
            model[key] += line.count
            names.setdefault(key, {})[line.name] = None
    sent = [one for one in found.collectives if one.kind is CollectiveKind.SEND]
    program = Counter[Key]()
    for one in (*_in_all(sent), *(one for one in found.collectives if one.kind is not CollectiveKind.SEND)):
        program[one.kind, one.size, Fraction(one.payload)] += one.count
    keys = sorted({**model, **program}, key=lambda k: (-k[2] * max(model[k], program[k]), k))
    return tuple(Row(*key, model[key], program[key], tuple(names.get(key, ()))) for key in keys)


def _in_all(several: Sequence[Exchanged]) -> list[Exchanged]:
    """Exchanges that are alike in all but size, as one of all their bytes."""
    total = sum(one.payload * one.count for one in several)
    return [replace(several[0], payload=total, count=1)] if several else []


def _padding(values: dict[str, Fraction]) -> Iterable[str]:
    """Rows that pad an attention group to equal parts: engines compute their attention, the program does not."""
    padded = values["rows"] - values["batch"] * values["verify"]
    if padded:
        yield f"{padded} of {values['rows']} rows only pad the attention group: its attention is priced only"
