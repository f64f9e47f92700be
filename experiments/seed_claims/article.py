"""The two deployments of article 000, priced by the tool at any load.

What the articles state about themselves and the tool cannot know are inputs here, each with its source beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Final

import numpy as np
from jaxtyping import Float

from explorer.evaluate import Tables
from explorer.priced import Priced, priced
from explorer.request import Request, make_request
from explorer.residents.budget import Memory
from explorer.schedule import Schedule
from layouts.layout import Layout

Wanted = Callable[[str, str], bool]

CONTEXT: Final = 100_000  # tokens; article 000, all tables but S13 and S14
FULL: Final = 384  # requests of the instance: 24 a card in DP16, 192 a group in DP2 (max_running_requests)
MODEL: Final = "kimi-k3@article"
CHIP: Final = "b200"


@dataclass(frozen=True)
class Deployment:
    """A layout and the start-up parameters that article 000 gives for it."""

    name: str
    text: str
    extra_slots: int
    draft_window: int
    mem_fraction: float
    shared_in_combine: bool

    @cached_property
    def request(self) -> Request:
        """The question that the article's benchmark asks of it."""
        asked = make_request(
            MODEL,
            CHIP,
            16,
            context=CONTEXT,
            verify_width=5,
            extra_slots=self.extra_slots,
            mem_fraction=self.mem_fraction,
        )
        return replace(asked, draft_window=self.draft_window, overlap=self.shared_in_combine)

    @cached_property
    def layout(self) -> Layout:
        """The layout, resolved and checked."""
        return self.request.layout(self.text)


DP16: Final = Deployment(
    "DP16", "attn_dp=16,ep=16", extra_slots=8, draft_window=4753, mem_fraction=0.88, shared_in_combine=False
)
DP2: Final = Deployment(
    "DP2 x DCP8", "attn_dp=2,dcp=8,ep=16", extra_slots=16, draft_window=7997, mem_fraction=0.83, shared_in_combine=True
)
BOTH: Final = (DP16, DP2)


@dataclass(frozen=True)
class Step:
    """One priced step by the names of its blocks and ops, in the units of the claims."""

    priced: Priced

    @cached_property
    def values(self) -> Mapping[str, float]:
        """The layout's quantities."""
        return self.priced.values

    @property
    def memory(self) -> Memory:
        """The ledger, divided."""
        return self.priced.held

    @property
    def schedule(self) -> Schedule:
        """Main stream, gather stream and waits by position."""
        return self.priced.schedule

    @cached_property
    def ops(self) -> Mapping[tuple[str, str], int]:
        """Where an op of a block stands in the arrays."""
        table = self.priced.table
        return {
            (table.block_names[b], name): i for i, (b, name) in enumerate(zip(table.block, table.names, strict=True))
        }

    @cached_property
    def lines(self) -> Mapping[str, float]:
        """Bytes of the ledger's lines."""
        return dict(zip((x.name for x in self.priced.tables.memory.lines), map(float, self.memory.lines), strict=True))

    @property
    def ms(self) -> float:
        """Milliseconds of the step."""
        return self.priced.step * 1e3

    def us(self, op: str, block: str, alone: bool = False) -> float:
        """Microseconds of one execution of an op: on average over the step, or as if the other stream stood still."""
        seconds = self.priced.parts.alone if alone else self.priced.parts.seconds
        return float(seconds[self.ops[block, op]]) * 1e6

    def contention(self, op: str, block: str) -> float:
        """By which fraction longer an op takes while the other stream runs."""
        return float(self.priced.parts.contention[self.ops[block, op]])

    def sent(self, op: str, block: str) -> float:
        """Bytes that a rank sends (and receives) in one execution of an exchange."""
        return float(self.priced.parts.sent[self.ops[block, op]])

    def total(self, each: Float[np.ndarray, " ops"], wanted: Wanted) -> float:
        """Sum over the step of a column of the ops for which `wanted(block, op)`, however often they run."""
        counts = self.priced.counts
        return sum(float(each[i] * counts[i]) for key, i in self.ops.items() if wanted(*key))

    def total_ms(self, wanted: Wanted) -> float:
        """Milliseconds a step of some ops."""
        return self.total(np.asarray(self.priced.parts.seconds), wanted) * 1e3

    def of_op(self, *ops: str) -> float:
        """Milliseconds a step of the ops with these names, the draft's left out."""
        return self.total_ms(lambda block, op: op in ops and not block.startswith("draft"))

    def waits(self, block: str) -> list[float]:
        """Milliseconds that the main stream waits for weights at each of the positions whose block's name starts so."""
        names = [self.priced.table.block_names[i] for i in self.priced.table.sequence]
        return [float(w) * 1e3 for name, w in zip(names, self.schedule.wait, strict=True) if name.startswith(block)]


@cache
def tables() -> Tables:
    """The model of the article, lowered."""
    return Tables(DP16.request.model)


def price(request: Request, layout: Layout, concurrency: int) -> Step:
    """Price one step of the article's model; one compiled program serves every layout and load."""
    return Step(priced(replace(request, concurrency=concurrency), layout, tables()))


@cache
def step(deployment: Deployment, concurrency: int, context: int = CONTEXT, verify: int = 5) -> Step:
    """A step of one of the two deployments at an instance concurrency."""
    return price(replace(deployment.request, context=context, verify_width=verify), deployment.layout, concurrency)
