"""One GPU's memory divided in whole bytes: the same rule as `budget.memory`, in Python's integers, for reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from typing import Protocol

from explorer.evaluate import Tables
from explorer.request import Request
from explorer.residents.budget import Memory
from explorer.residents.line import Group, Line
from explorer.residents.lines import kv_bytes_a_token
from layouts.expression import Expr
from layouts.layout import Layout


class Divided(Protocol):
    """What is divided: a layout that is priced, or whose memory alone was asked (`Priced`, `Held`)."""

    @property
    def request(self) -> Request: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def tables(self) -> Tables: ...
    @property
    def values(self) -> Mapping[str, float]: ...
    @property
    def held(self) -> Memory: ...


@dataclass(frozen=True)
class Division:
    """Integers of the ledger. `wanted` requests of a group run at once (a fraction of one in prefill)."""

    found: Divided

    @cached_property
    def numbers(self) -> dict[str, Fraction]:
        """The layout's quantities; all but expected coverage are whole, up to a rounding error of a power."""
        return {name: _exact(value) for name, value in self.found.values.items()}

    @cached_property
    def _sizes(self) -> dict[Line, int]:
        return {line: round(float(n)) for line, n in zip(self.lines, self.found.held.lines, strict=True)}

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line but staging and KV pool."""
        return self.found.tables.memory.lines

    def size(self, line: Line) -> int:
        """Bytes of a line."""
        return self._sizes[line]

    def of(self, group: Group) -> int:
        """Bytes of a group's lines."""
        return sum(self.size(line) for line in self.lines if line.group is group)

    @property
    def dcp(self) -> int:
        return self.found.layout.dcp

    @property
    def groups(self) -> int:
        """Attention groups of the instance."""
        return self.found.layout.replicas * self.found.layout.attn_dp

    @property
    def staging(self) -> int:
        held = self.found.held
        return round(float(held.staging) + float(held.draft_staging))

    @cached_property
    def free(self) -> int:
        """What the driver leaves."""
        return floor(float(self.found.request.machine.free_bytes))

    @cached_property
    def before(self) -> int:
        """Free before the weights load."""
        return self.free - self.of(Group.START)

    @cached_property
    def static(self) -> int:
        """The share of it for weights and pools."""
        return floor(self.before * Fraction(float(self.found.held.mem_fraction)))

    @cached_property
    def weights(self) -> int:
        """Weights and staging buffers."""
        return self.of(Group.WEIGHTS) + self.staging

    @cached_property
    def budget(self) -> int:
        """What is left of the share for pools; negative where the weights do not fit."""
        return self.static - self.weights

    @cached_property
    def state(self) -> int:
        return self.of(Group.STATE)

    @property
    def for_kv(self) -> int:
        return self.budget - self.state

    @cached_property
    def slot_rule(self) -> Expr:
        """Bytes of a token slot of the KV pool on one rank."""
        return kv_bytes_a_token(self.found.request.model)

    @cached_property
    def slot(self) -> int:
        return self.slot_rule.bytes(self.numbers)

    @cached_property
    def kv_tokens(self) -> int:
        """Token slots of one rank's pool; none for a model without a KV cache."""
        return max(self.for_kv, 0) // self.slot if self.slot else 0

    @property
    def wanted(self) -> Fraction:
        return _exact(float(self.found.held.wanted))

    @property
    def slots(self) -> int:
        """State slots that are allocated, the padding slot among them."""
        return round(float(self.found.held.slots))

    @property
    def state_slot(self) -> Fraction:
        """Bytes of one state slot."""
        return Fraction(self.state, self.slots)

    @property
    def kv_request(self) -> Fraction:
        """Bytes of KV that one request keeps on a rank."""
        return Fraction(self.found.request.context * self.slot, self.dcp)

    @property
    def needed(self) -> int:
        """What the load asks of the static share."""
        return self.weights + self.state + ceil(self.wanted * self.kv_request)

    @property
    def reserve(self) -> int:
        """What lives outside the static share."""
        return self.of(Group.RESERVE)

    @property
    def remainder(self) -> int:
        """What is left outside it at run time."""
        return self.before - self.static - self.reserve


def _exact(value: float) -> Fraction:
    whole = round(value)
    return Fraction(whole) if abs(value - whole) < 1e-9 * max(1.0, abs(value)) else Fraction(value)
