"""Drafts: small models that propose the tokens which a step verifies."""

from dataclasses import dataclass, replace
from typing import Literal

from layouts.expression import Expr, total
from layouts.models.layer import Layer
from layouts.symbols import ATTN_TP, DENSE_TP, DRAFT_ROWS, DRAFT_SHARD, ROWS
from layouts.tensor import Component, Tensor

# A block draft writes the keys and values of its context outside the pass, so its qkv is read outside the window in
# which a sharded weight is gathered: it stays whole.
_CONTEXT_PROJECTIONS = ("q_proj", "kv_proj")


@dataclass(frozen=True)
class MTPLayer(Layer):
    """A multi-token-prediction layer: a layer of the model, on the rows of a draft pass.

    `component`: the one component that all its weights belong to where the checkpoint stores them unlike the model's;
    None leaves each weight with its own.
    """

    component: Component | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight once, as the draft holds and runs it."""
        return tuple(
            replace(
                tensor,
                component=self.component or tensor.component,
                rows=None if tensor.rows is None else tensor.rows * DRAFT_ROWS / ROWS,
                shard=None if tensor.shard is None else DRAFT_SHARD,
            )
            for tensor in super().tensors()
        )


@dataclass(frozen=True)
class BlockDraftLayer(Layer):
    """A layer of a block draft: head-cut over attention TP like its attention, MLP included."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight once, as the draft holds and runs it."""
        return tuple(
            replace(
                tensor,
                component="draft",
                rows=None if tensor.rows is None else DRAFT_ROWS,
                cut=ATTN_TP if tensor.cut == DENSE_TP else tensor.cut,
                shard=None if tensor.rows is None or tensor.name in _CONTEXT_PROJECTIONS else DRAFT_SHARD,
            )
            for tensor in super().tensors()
        )


@dataclass(frozen=True)
class Draft:
    """`passes` sequential forward passes propose `block` tokens; a step then verifies block + 1 rows a request.

    `extra` are weights outside the layers. `kv`: a draft keeps its keys either for a bounded `window` of slots or for
    every `token` of the context (MTP layers, which attend like the model does).
    """

    name: str
    layers: tuple[Layer, ...]
    passes: int
    block: int
    extra: tuple[Tensor, ...]
    kv: Literal["window", "token"]

    def verifying(self, width: int) -> "Draft":
        """The same draft where a step verifies `width` >= 2 rows: a block draft still runs once, MTP once a token."""
        return replace(self, block=width - 1, passes=width - 1 if self.kv == "token" else self.passes)

    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight of all layers and outside them."""
        return tuple(tensor for layer in self.layers for tensor in layer.tensors()) + self.extra

    def kv_bytes(self, format_name: str) -> Expr:
        """Bytes of one KV slot in all draft layers on one rank, index keys left out."""
        return total(layer.attention.kv_bytes(format_name) for layer in self.layers)
