"""What the count of a program is: FLOPs by label and exchanges by kind, bytes and group, as exact integers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hw.errors import MeshwrightError
from hw.work import CollectiveKind


class AuditError(MeshwrightError):
    """A program that cannot be counted: what it holds, and how to write it so that it can."""


@dataclass(frozen=True)
class Exchanged:
    """An exchange that a rank takes part in, `count` times.

    `payload` in bytes and `size` in ranks follow `hw.work.Collective`. `stride` is the distance in rank order between
    neighbours along the innermost of the mesh axes named: between all neighbours of the group where the axes stand
    next to each other in the mesh, and the smallest of its distances where they do not. `axes` are as the program
    names them, `label` is the scope that the exchange stands in ("" outside any).
    """

    kind: CollectiveKind
    payload: int
    size: int
    stride: int
    axes: tuple[str, ...]
    label: str
    count: int = 1


@dataclass(frozen=True)
class Counts:
    """A program's FLOPs by label and its exchanges, those that are alike merged; both in order of appearance.

    `left_out` names what holds work that is not counted (kernels, callbacks, factorisations); `notes` say which branch
    stands for a conditional whose branches differ in what they exchange.
    """

    flops: Mapping[str, int]
    collectives: tuple[Exchanged, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def total_flops(self) -> int:
        """FLOPs of all labels."""
        return sum(self.flops.values())

    def payload(self, kind: CollectiveKind | None = None) -> int:
        """Payload bytes of one kind of exchange, or of all, each as often as it runs."""
        return sum(e.payload * e.count for e in self.collectives if kind in (None, e.kind))


@dataclass
class Tally:
    """Counts under construction. The label "" is that of whoever runs the program."""

    flops: dict[str, int] = field(default_factory=dict)
    exchanges: dict[Exchanged, int] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def compute(self, label: str, flops: int) -> None:
        """FLOPs of one product."""
        self.flops[label] = self.flops.get(label, 0) + flops

    def exchange(self, one: Exchanged, times: int = 1) -> None:
        """An exchange, `one.count` being one."""
        self.exchanges[one] = self.exchanges.get(one, 0) + times

    def run(self, other: "Tally", label: str, times: int = 1) -> None:
        """All that an inner program does, run `times` times under `label`."""
        self.run_flops(other, label, times)
        self.run_exchanges(other, label, times)
        self.left_out |= other.left_out
        self.notes |= other.notes

    def run_flops(self, other: "Tally", label: str, times: int = 1) -> None:
        """The FLOPs of an inner program alone."""
        for name, flops in other.flops.items() if times else ():
            self.compute(name or label, flops * times)

    def run_exchanges(self, other: "Tally", label: str, times: int = 1) -> None:
        """The exchanges of an inner program alone."""
        for one, count in other.exchanges.items() if times else ():
            self.exchange(one if one.label else replace(one, label=label), count * times)

    @property
    def total_flops(self) -> int:
        """FLOPs of all labels."""
        return sum(self.flops.values())

    @property
    def total_payload(self) -> int:
        """Payload bytes of all exchanges."""
        return sum(one.payload * count for one, count in self.exchanges.items())

    def idle(self) -> bool:
        """Whether it computes no product, exchanges nothing and leaves nothing out."""
        return not (self.flops or self.exchanges or self.left_out)

    def counts(self) -> Counts:
        """The result."""
        merged = tuple(replace(one, count=count) for one, count in self.exchanges.items())
        return Counts(dict(self.flops), merged, tuple(self.left_out), tuple(self.notes))


def merged(parts: Iterable[Counts]) -> Counts:
    """Several programs that run one after another, as one."""
    tally = Tally()
    for part in parts:
        for label, flops in part.flops.items():
            tally.compute(label, flops)
        for one in part.collectives:
            tally.exchange(replace(one, count=1), one.count)
        tally.left_out |= dict.fromkeys(part.left_out)
        tally.notes |= dict.fromkeys(part.notes)
    return tally.counts()
