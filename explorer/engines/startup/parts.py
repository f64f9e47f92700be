"""The bytes of one rank that start-up rules divide, out of the ledger's lines."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil

from explorer.engines.setup import Setup
from explorer.evaluate import Tables
from explorer.held import held
from explorer.residents.division import Division
from explorer.residents.estimates import GRAPHS
from explorer.residents.line import Group, Holding, Line
from explorer.residents.lines import RING, kv_bytes_a_token
from layouts.csa import CSA
from layouts.expression import Expr, total
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.models import Model
from layouts.serving.compressed_pools import CompressedLayers
from layouts.symbols import layers_of


class _Lowered:
    """What tables depend on, told apart by content: commands that differ in a flag share a model."""

    def __init__(self, model: Model, prefill: bool, holding: Holding):
        self.model, self.prefill, self.holding = model, prefill, holding
        formats = tuple((name, form.name) for name, form in model.precision.formats.items())
        rest = repr((model.name, model.draft, model.defaults, model.vision, model.table_bytes))
        sizes = (model.vocab, model.context_limit, model.tied)
        self._content = (model.layers, formats, rest, sizes, prefill, holding)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lowered) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


@functools.lru_cache(maxsize=32)
def _lowered(asked: _Lowered) -> Tables:
    return Tables(asked.model, asked.prefill, asked.holding)


@dataclass(frozen=True)
class StateSlot:
    """Bytes of one slot of recurrent state on a rank, all layers of the heaviest stage: convolution and recurrence."""

    conv: int
    recurrent: int

    @property
    def bytes(self) -> int:
        return self.conv + self.recurrent


@dataclass(frozen=True)
class Parts:
    """One rank of a server, in bytes. What a reading of a log replaces is looked up in `given`."""

    setup: Setup

    @cached_property
    def books(self) -> Division:
        """The ledger of the layout, whole bytes."""
        return Division(held(self.setup.request, self.setup.layout, self.tables))

    @cached_property
    def tables(self) -> Tables:
        """The model lowered to arrays."""
        request = self.setup.request
        return _lowered(_Lowered(request.model, request.prefill, request.holding))

    @property
    def numbers(self) -> Mapping[str, Fraction]:
        """The layout's quantities."""
        return self.books.numbers

    @property
    def total(self) -> int:
        """Memory of the GPU."""
        return int(self.setup.request.machine.memory_bytes)

    @property
    def free(self) -> int:
        """Free once communicators stand, before weights load."""
        return self.books.before

    @property
    def weights(self) -> int:
        """Of target and draft."""
        return self.books.weights

    @property
    def token(self) -> int:
        """KV bytes of a token slot of the pool, the draft's own KV included."""
        return kv_bytes_a_token(self.setup.request.model).bytes(self.numbers)

    @cached_property
    def state(self) -> StateSlot | None:
        """None for a model without recurrent layers."""
        model = self.setup.request.model
        kind = model.precision["state"].name
        states = [(layers_of(k), la.attention) for k, la in enumerate(model.kinds) if isinstance(la.attention, KDA)]
        if not states:
            return None
        slot = total(n * a.state_bytes(0, kind) for n, a in states)
        window = total(n * (a.state_bytes(1, kind) + a.state_bytes(0, kind) * -1) for n, a in states)
        conv = self._bytes(window)
        return StateSlot(conv, self._bytes(slot) - conv)

    @cached_property
    def compressed(self) -> CompressedLayers | None:
        """Layers of the heaviest stage whose context is kept compressed; None for a model without such."""
        model = self.setup.request.model
        kinds = [(int(self.numbers[f"layers_{k}"]), la.attention) for k, la in enumerate(model.kinds)]
        rows = [(count, a) for count, a in kinds if isinstance(a, CSA)]
        if not rows:
            return None
        index = next((a for _, a in rows if a.indexed), None)
        return CompressedLayers(
            layers=sum(count for count, _ in rows),
            four=sum(count for count, a in rows if a.indexed),
            many=sum(count for count, a in rows if a.ratio and not a.indexed),
            row=rows[0][1].row_bytes(model.precision["kv"].name),
            head=rows[0][1].head_dim,
            index=index.index_dim if index else 0,
            index_row=index.index_bytes if index else 0,
        )

    def line(self, name: str) -> int:
        """Bytes of a line of the ledger; 0 where it has none of that name."""
        return sum(self.books.size(line) for line in self.books.lines if line.name == name)

    def ring_slot(self) -> int:
        """Bytes of a ReplaySSM ring of one state slot."""
        rings = [
            layers_of(k) * la.attention.replay_bytes(RING)
            for k, la in enumerate(self.setup.request.model.kinds)
            if isinstance(la.attention, KDA)
        ]
        return self._bytes(total(rings))

    def lines(self, *groups: Group) -> list[Line]:
        """The ledger's lines of some groups that hold something; no graphs where the command switches them off."""
        graphs = self.setup.settings.pools.graphs
        held = [line for line in self.books.lines if line.group in groups and self.books.size(line)]
        return [line for line in held if graphs or line.name != GRAPHS]

    def reserved(self, prompts: tuple[int, int]) -> tuple[int, int]:
        """Bytes that graphs, buffers, tables and a step of prompts take outside the pools: as estimated, and at most.
        `prompts`: those of a step of prompts, likewise."""
        lines = self.lines(Group.RESERVE)
        sizes = [self.books.size(line) for line in lines]
        most = sum(ceil(size * line.high) for size, line in zip(sizes, lines, strict=True))
        return sum(sizes) + prompts[0], most + prompts[1]

    def window(self) -> int:
        """Tokens that the window layers look back; 0 without such layers."""
        attentions = (layer.attention for layer in self.setup.request.model.kinds)
        return max((a.window for a in attentions if isinstance(a, GQA | CSA)), default=0)

    def window_token(self) -> int:
        """KV bytes of a token slot in all layers with a sliding window."""
        model = self.setup.request.model
        kind = model.precision["kv"].name
        layers = [(layers_of(k), la.attention) for k, la in enumerate(model.kinds)]
        held = [n * a.kv_bytes(kind) for n, a in layers if isinstance(a, GQA) and a.window]
        return self._bytes(total(held)) if held else 0

    def draft_pool(self) -> int:
        """Bytes of the KV of a block draft, which has a window of its own in every request slot."""
        return self.line("draft KV")

    def _bytes(self, size: Expr) -> int:
        return size.bytes(self.numbers)
