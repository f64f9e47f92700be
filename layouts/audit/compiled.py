"""The exchanges of a compiled program, read from its HLO text, and what the compiler made of the traced ones.

XLA may drop an exchange whose result is not used, merge equal ones, or join several of one group into one (a tuple,
whose bytes are the sum). Its CPU backend sends types that it does not compute in as wider ones, whatever the exchange:
bfloat16 as float32, fp8 and fp4 as float16 (e8m0 as float32), int4 as int8. Types of its own (float32, float16,
integers of whole bytes) go to the byte as traced: a program to compare on the CPU is one of those.

A `conditional` counts by the branch with the most payload, a `while` by its known number of turns.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hw.work import CollectiveKind
from layouts.audit.counts import AuditError, Counts
from layouts.audit.hlo import Computation, Instruction, Module, array_bytes, parse

_KINDS: Final[Mapping[str, CollectiveKind]] = {
    form: kind
    for opcode, kind in (
        ("all-gather", CollectiveKind.ALL_GATHER),
        ("reduce-scatter", CollectiveKind.REDUCE_SCATTER),
        ("all-reduce", CollectiveKind.ALL_REDUCE),
        ("all-to-all", CollectiveKind.ALL_TO_ALL),
        ("ragged-all-to-all", CollectiveKind.ALL_TO_ALL),
        ("collective-permute", CollectiveKind.SEND),
    )
    for form in (opcode, f"{opcode}-start")  # of an asynchronous pair the start carries the bytes
}
_REFUSED: Final = ("collective-broadcast", "collective-broadcast-start")
_FINISHED: Final = ("async-update", "async-done")  # they name what the `async-start` ran


class Message(NamedTuple):
    """An exchange as both the traced and the compiled program show it; a send has no size of group (0)."""

    kind: CollectiveKind
    payload: int
    size: int


@dataclass(frozen=True)
class Difference:
    """The exchanges of one kind and group size that are not the same: how many there are of each payload."""

    kind: CollectiveKind
    size: int
    traced: Mapping[int, int]
    compiled: Mapping[int, int]

    def __str__(self) -> str:
        over = f" over {self.size}" if self.size else ""
        return f"{self.kind}{over}: traced {_listed(self.traced)}, compiled {_listed(self.compiled)}"

    @property
    def same_bytes(self) -> bool:
        """Whether exchanges were only joined or split: as many bytes in all."""
        return _total(self.traced) == _total(self.compiled)


def traced_messages(counts: Counts) -> Mapping[Message, int]:
    """The traced exchanges, and how often each runs, to be held against compiled ones."""
    found: Counter[Message] = Counter()
    for e in counts.collectives:
        found[Message(e.kind, e.payload, 0 if e.kind is CollectiveKind.SEND else e.size)] += e.count
    return found


def compiled_messages(text: str) -> Mapping[Message, int]:
    """The exchanges in HLO text (`jit(f).lower(...).compile().as_text()`) and how often each runs.

    Payloads follow `hw.work.Collective`; groups of one rank are left out, as in `count`. Raises AuditError for an
    exchange in a `while` of unknown length, for groups it cannot read, and for a broadcast, which has no kind.
    """
    module = parse(text)
    return _Walk(module).computation(module.entry)


def differences(traced: Mapping[Message, int], compiled: Mapping[Message, int]) -> tuple[Difference, ...]:
    """What the compiler changed, by kind and group size; exchanges that are the same on both sides are left out."""
    only_traced, only_compiled = Counter(traced) - Counter(compiled), Counter(compiled) - Counter(traced)
    groups = dict.fromkeys((m.kind, m.size) for m in (*only_traced, *only_compiled))
    return tuple(
        Difference(kind, size, _of_group(only_traced, kind, size), _of_group(only_compiled, kind, size))
        for kind, size in groups
    )


@dataclass
class _Walk:
    module: Module
    walked: dict[str, Counter[Message]] = field(default_factory=dict)

    def computation(self, name: str) -> Counter[Message]:
        if name not in self.walked:
            found: Counter[Message] = Counter()
            body = self.module.computations[name]
            for instruction in body.values():
                found += self.instruction(instruction, body)
            self.walked[name] = found
        return self.walked[name]

    def instruction(self, one: Instruction, body: Computation) -> Counter[Message]:
        if one.opcode in _REFUSED:
            raise AuditError(f"{one.name}: a collective broadcast is no exchange of the cost model: use another")
        if one.opcode in _KINDS:
            return Counter(_messages(one, body, self.module.ranks))
        if one.opcode in _FINISHED:
            return Counter()
        if one.opcode == "while":
            return self.loop(one)
        inner = [self.computation(name) for name in one.called()]
        if one.opcode == "conditional":
            return max(inner, key=lambda c: sum(m.payload * n for m, n in c.items()))
        return sum(inner, Counter())

    def loop(self, one: Instruction) -> Counter[Message]:
        inner = sum((self.computation(name) for name in one.called()), Counter())
        turns = one.trip_count()
        if inner and turns is None:
            raise AuditError(f"{one.name}: a while of unknown length holds exchanges: write it as a scan")
        return Counter({message: n * (turns or 0) for message, n in inner.items()})


def _messages(one: Instruction, body: Computation, ranks: int) -> Iterator[Message]:
    kind = _KINDS[one.opcode]
    operands = one.operands[:1] if one.opcode.startswith("ragged") else one.operands
    held = sum(array_bytes(body[name].shape) for name in operands)
    if kind is CollectiveKind.SEND:
        yield Message(kind, held, 0)
        return
    size = one.group_size(ranks)
    if size > 1:
        yield Message(kind, held * (size if kind is CollectiveKind.ALL_GATHER else 1), size)


def _of_group(messages: Mapping[Message, int], kind: CollectiveKind, size: int) -> dict[int, int]:
    return {m.payload: n for m, n in messages.items() if (m.kind, m.size) == (kind, size)}


def _listed(payloads: Mapping[int, int]) -> str:
    return " + ".join(f"{n} x {payload} B" for payload, n in payloads.items()) or "none"


def _total(payloads: Mapping[int, int]) -> int:
    return sum(payload * n for payload, n in payloads.items())
