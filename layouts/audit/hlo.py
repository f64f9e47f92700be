"""As much of XLA's HLO text as an audit reads: computations, instructions, shapes, groups and what calls what."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from layouts.audit.counts import AuditError

# A dtype's width is the first number in its name: bf16, s4, f8e4m3fn, f4e2m1fn; a pred is a byte, a token none.
_ARRAY: Final = re.compile(r"\b(pred|[a-z]+(\d*)\w*)\[([\d,]*)\]")
_HEADER: Final = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*)$")
_NAME: Final = re.compile(r"%([\w.\-]+)")
_CALLED: Final = re.compile(
    r"\b(?:calls|body|condition|to_apply|(?:true|false|called)_computations?|branch_computations)=(\{[^}]*\}|%[\w.\-]+)"
)
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_EXPLICIT: Final = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA: Final = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESH: Final = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")


@dataclass(frozen=True)
class Instruction:
    """One line: its result's shape, what it does, the names of its operands, and its attributes as text."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def called(self) -> tuple[str, ...]:
        """Computations that it runs (or reduces with, which exchange nothing)."""
        return tuple(name for value in _CALLED.findall(self.attributes) for name in _NAME.findall(value))

    def trip_count(self) -> int | None:
        """Turns of a `while`, where the compiler knows them."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None

    def group_size(self, ranks: int) -> int:
        """Ranks of one group, in any form in which XLA writes groups; AuditError for another or for unequal ones.

        The groups are listed ({{0,1},{2,3}}, or {} for one of all ranks), or a transposed iota cut in rows
        ([2,4]<=[8]), or axes of a mesh, whole or in part (mesh['a'=2,'b'=4] {'b':(1)2}).
        """
        if found := _EXPLICIT.search(self.attributes):
            sizes = {len(group.split(",")) for group in re.findall(r"\{([\d,]+)\}", found[1])} or {ranks}
            if len(sizes) == 1:
                return sizes.pop()
        elif found := _IOTA.search(self.attributes):
            return int(found[1])
        elif found := _MESH.search(self.attributes):
            sizes_of = dict(re.findall(r"'([^']*)'=(\d+)", found[1]))
            named = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", found[2])
            return math.prod(int(part or sizes_of[name]) for name, part in named)
        raise AuditError(f"{self.name}: its replica groups are unequal or in an unknown form: exchange in equal groups")


Computation = Mapping[str, Instruction]  # by name, in order


@dataclass(frozen=True)
class Module:
    """A compiled program: its computations, the one that it starts in, and how many ranks run it."""

    computations: Mapping[str, Computation]
    entry: str
    ranks: int


def parse(text: str) -> Module:
    """The module that HLO text describes; AuditError for other text."""
    computations: dict[str, dict[str, Instruction]] = {}
    body: dict[str, Instruction] = {}
    entry = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            body = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            body[found[1]] = _instruction(found[1], found[2])
    if not entry:
        raise AuditError("the text has no ENTRY computation: pass what compile().as_text() returns")
    return Module(computations, entry, _header_size(text, "replica_count") * _header_size(text, "num_partitions"))


def array_bytes(shape: str) -> int:
    """Bytes of an array or of a tuple's arrays, each rounded up to whole ones, as "f32[2,3]" or "(s4[3], u8[])"."""
    return sum(
        -(-math.prod(int(d) for d in dims.split(",") if d) * (8 if dtype == "pred" else int(bits or 0)) // 8)
        for dtype, bits, dims in _ARRAY.findall(shape)
    )


def _instruction(name: str, rest: str) -> Instruction:
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shape, call = rest[:end], rest[end:].lstrip()
    opcode, _, listed = call.partition("(")
    close = _closing("(" + listed)
    return Instruction(name, shape, opcode, tuple(_NAME.findall(listed[: close - 1])), listed[close - 1 :])


def _closing(text: str) -> int:
    """Where the bracket that text begins with is closed: the place after it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place + 1
    raise AuditError(f"HLO text ends inside a bracket: {text[:40]!r}: pass the whole text")


def _header_size(text: str, field: str) -> int:
    found = re.search(rf"^HloModule .*\b{field}=(\d+)", text)
    return int(found[1]) if found else 1
