"""A model as data: its layers, its vocabulary, the draft that runs beside it, and the format of each component."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any

from layouts.gqa import GQA
from layouts.mla import MLA
from layouts.models.draft import Draft
from layouts.models.errors import ModelError
from layouts.models.layer import Layer
from layouts.residual.shape import AttentionResidual
from layouts.shapes import BF16, vector
from layouts.symbols import LOGIT_ROWS, VOCAB_TP
from layouts.tensor import Precision, Tensor


@dataclass(frozen=True)
class Model:
    """A decoder. `layers` are those of the model itself; MTP layers belong to the draft.

    `tied`: the vocabulary matrix serves as embedding and head. `notes` say what was assumed or left out;
    `defaults` are request defaults that a preset brings along (accept_length, verify_width, vocab_tp, ...), as its TOML
    has them: numbers, and for graph_sizes a list. `curves`: by chip, the curves of the engine that a build ran on.
    `table_bytes`: constant tables that every rank holds beside its weights. `vision`: weights of the tower for
    pictures, which are held but no part of a step, of `parameters` or of `weight_bytes`. `encoder`: layers and width by
    which SGLang sizes such a tower, None for a model without one.
    """

    name: str
    hidden: int
    vocab: int
    context_limit: int
    tied: bool
    layers: tuple[Layer, ...]
    draft: Draft | None
    precision: Precision
    notes: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    curves: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    table_bytes: int = 0
    vision: tuple[Tensor, ...] = ()
    encoder: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError(f"{self.name}: a model needs at least one layer")
        drafted = self.draft.layers if self.draft is not None else ()
        widths = {layer.hidden for layer in (*self.layers, *drafted)} | {self.hidden}
        if len(widths) > 1:
            raise ModelError(f"{self.name}: hidden widths {sorted(widths)} differ; model and draft must share one")
        if len(self._kv_heads) > 1:
            raise ModelError(
                f"{self.name}: KV head counts {sorted(self._kv_heads)} differ between layers; one is needed"
            )

    @cached_property
    def _kv_heads(self) -> frozenset[int]:
        drafted = self.draft.layers if self.draft is not None else ()
        return frozenset(la.attention.kv_heads for la in (*self.layers, *drafted) if isinstance(la.attention, GQA))

    @property
    def kv_heads(self) -> int:
        """KV heads of the GQA layers, drafts included; 0 without such layers."""
        return max(self._kv_heads, default=0)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The different layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """For each layer the index of its kind."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return tuple(index[layer] for layer in self.layers)

    @cached_property
    def kind_counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.kind_of_layer.count(i) for i in range(len(self.kinds)))

    @property
    def residual(self) -> AttentionResidual | None:
        """How its layers mix earlier states of the stream, if they do."""
        return self.layers[0].residual

    @property
    def sparse(self) -> bool:
        """Whether an indexer picks the tokens that attention reads."""
        attentions = (layer.attention for layer in self.layers)
        return any(isinstance(a, MLA) and a.indexer is not None for a in attentions)

    def layers_of_kind(self, kind: int) -> tuple[int, ...]:
        """0-based layers of one kind."""
        return tuple(layer for layer, k in enumerate(self.kind_of_layer) if k == kind)

    def vocabulary(self) -> tuple[Tensor, ...]:
        """Embedding, head, and what stands before it. A tied matrix is listed once, as the head; a lookup is never
        quantised."""
        embed = Tensor("embed_tokens", self.vocab, self.hidden, "head", None, VOCAB_TP, fixed=BF16)
        return (
            *(() if self.tied else (embed,)),
            Tensor("lm_head", self.vocab, self.hidden, "head", LOGIT_ROWS, VOCAB_TP),
            *(() if self.residual is None else self.residual.output_tensors()),
            vector("final_norm", self.hidden, "head"),
        )

    @property
    def parameters(self) -> int:
        """Parameters of the model without its draft."""
        return sum(layer.parameters for layer in self.layers) + sum(t.parameters for t in self.vocabulary())

    @property
    def weight_bytes(self) -> Fraction:
        """Bytes of one whole copy of the weights, scales included, without the draft."""
        whole = {"attn_tp": 1, "kv_head_ranks": 1, "dense_tp": 1, "shared_tp": 1, "vocab_tp": 1, "expert_tp": 1}
        whole |= {"attention_shard": 1, "moe_shard": 1, "draft_shard": 1}
        size = sum((t.resident(self.precision).evaluate(whole) for t in self.vocabulary()), start=Fraction(0))
        for kind, count in zip(self.kinds, self.kind_counts, strict=True):
            values = whole | {"experts_rank": kind.experts}
            size += count * sum(t.resident(self.precision).evaluate(values) for t in kind.tensors())
        return size
