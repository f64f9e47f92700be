"""Flax modules of a decoder layer. They hold whole weights outside `shard_map` and a rank's part inside, where they
are called: attention brings a part of a sum over the attention group, and the layer adds it to the stream.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

import layouts.dense.sharded as dense
import layouts.gqa.sharded as gqa
import layouts.kda.sharded as kda
import layouts.mla.sharded as mla
import layouts.moe.sharded as moe
from layouts.decoder.step import Phase, Step
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.kda.reference import State
from layouts.kda.verify import Ring
from layouts.layout import Layout
from layouts.mesh import Axes, axes_of
from layouts.mla import MLA
from layouts.models.forms import Forms
from layouts.models.layer import Attention, Layer
from layouts.moe import MoE
from layouts.moe.exchange import Exchange
from layouts.residual.reference import rms_norm
from layouts.residual.sharded import add_norm_replicated
from layouts.rotary import Rotation

Rows = Float[Array, "rows hidden"]


def parameters(weights: Any) -> Any:
    """A tree of weights as Flax parameters of a module."""
    return nnx.data(jax.tree.map(nnx.Param, weights))


def values(held: Any) -> Any:
    """The arrays of such a tree."""
    return jax.tree.map(lambda p: p.get_value(), held, is_leaf=lambda p: isinstance(p, nnx.Param))


class CachedAttention(nnx.Module):
    """MLA or GQA over a paged pool."""

    def __init__(self, shape: MLA | GQA, forms: Forms, layout: Layout, weights: Any):
        self.shape, self.forms, self.layout = shape, forms, layout
        self.weights = parameters(weights)

    def __call__(
        self, hidden: Rows, pool: Array, step: Step, rotation: Rotation | None, phase: Phase
    ) -> tuple[Rows, Array, None]:
        """A part of the sum over attn_tp for all rows of the group, and this rank's pool with its new tokens."""
        module: Any = mla if isinstance(self.shape, MLA) else gqa
        partial, pool = module.decode(
            self.shape,
            values(self.weights),
            hidden,
            pool,
            step.batch,
            axes_of(self.layout),
            backend=self.layout.dcp_backend,
            scale=self.forms.scale,
            eps=self.forms.low_rank_eps,
            rotation=rotation,
        )
        return partial, pool, None


class DeltaAttention(nnx.Module):
    """KDA over state slots. Verified tokens stay in a ring until it is known how many of them were accepted."""

    def __init__(self, shape: KDA, forms: Forms, layout: Layout, weights: Any):
        assert forms.kda is not None
        self.form = forms.kda
        self.weights = parameters(weights)

    def __call__(
        self, hidden: Rows, pool: State, step: Step, rotation: Rotation | None, phase: Phase
    ) -> tuple[Rows, State, Ring | None]:
        """A part of the sum over attn_tp, the pool, and in a verify step what to commit from."""
        rows = hidden.reshape(-1, step.width, hidden.shape[-1])
        weights, ring = values(self.weights), None
        if phase == "verify":
            partial, ring = kda.verify(rows, pool, step.slots, weights, self.form)
        else:
            partial, pool = kda.prefill(rows, pool, step.slots, step.begins, step.new, weights, self.form)
        return partial.reshape(hidden.shape), pool, ring


class DenseMLP(nnx.Module):
    """The gated MLP of a dense layer, behind an all-reduce over the attention group."""

    def __init__(self, forms: Forms, layout: Layout, weights: Any):
        self.forms, self.layout = forms, layout
        self.weights = parameters(weights)

    def __call__(self, partial: Rows, stream: Rows, norm: Array, step: Step) -> Rows:
        """The stream with attention and MLP added, all rows of the group on each of its ranks."""
        axes = axes_of(self.layout)
        normed, stream = add_norm_replicated(partial, stream, norm, self.forms.eps, axes["attn_tp"])
        return stream + dense.dense(normed, values(self.weights), self.forms.activation, axes)


class ExpertMixture(nnx.Module):
    """The experts of a layer, with the exchanges that bring rows to them and back."""

    def __init__(self, forms: Forms, layout: Layout, weights: Any):
        self.forms, self.layout = forms, layout
        self.weights = parameters(weights)

    def __call__(self, partial: Rows, stream: Rows, norm: Array, step: Step) -> Rows:
        """The stream with attention and experts added, all rows of the group on each of its ranks."""
        exchange, counts = Exchange.of(self.layout, len(stream)), step.counts[0]
        brought = exchange.gather(partial, counts, stream)
        normed = rms_norm(brought, norm, self.forms.eps)
        mixed = moe.moe(normed, exchange.real(counts), values(self.weights), self.forms.mixture, exchange)
        return exchange.scatter(mixed, counts, brought)


class DecoderLayer(nnx.Module):
    """Norm, attention, norm, MLP or experts, around a residual stream that every rank of an attention group has."""

    def __init__(self, layer: Layer, forms: Forms, layout: Layout, weights: Any):
        self.eps, self.layout = forms.eps, layout
        self.input_norm = nnx.Param(weights["input_norm"])
        self.attention = _attention(layer.attention, forms, layout, weights["attention"])
        self.post_attention_norm = nnx.Param(weights["post_attention_norm"])
        ffn = ExpertMixture if isinstance(layer.ffn, MoE) else DenseMLP
        self.ffn = ffn(forms, layout, weights["ffn"])

    def __call__(
        self, stream: Rows, cache: Any, step: Step, rotation: Rotation | None, phase: Phase
    ) -> tuple[Rows, Any, Ring | None]:
        """The stream after the layer, its cache, and the ring of a linear-attention layer in a verify step."""
        rows = len(step.tokens)  # the stream is padded to equal parts of the attention group
        normed = rms_norm(stream, self.input_norm.get_value(), self.eps)[:rows]
        partial, cache, ring = self.attention(normed, cache, step, rotation, phase)
        partial = jnp.pad(partial, ((0, len(stream) - rows), (0, 0)))
        return self.ffn(partial, stream, self.post_attention_norm.get_value(), step), cache, ring


def _attention(shape: Attention, forms: Forms, layout: Layout, weights: Any) -> nnx.Module:
    if isinstance(shape, KDA):
        return DeltaAttention(shape, forms, layout, weights)
    return CachedAttention(shape, forms, layout, weights)


def padded_rows(rows: int, axes: Axes) -> int:
    """Rows of an attention group, padded to equal parts of its ranks."""
    return -(-rows // axes.size("attn_tp")) * axes.size("attn_tp")
