"""Flax modules of a decoder layer. They hold whole weights outside `shard_map` and a rank's part inside, where they
are called: attention brings a part of a sum over the attention group, and the layer adds it to the stream.
"""

import functools
from collections.abc import Callable
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
from layouts.collectives import psum
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
from layouts.residual.attention_residual import Stream, mixture, open_block, read_of
from layouts.residual.reference import rms_norm
from layouts.residual.shape import ATTENTION, FFN
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
            eps=self.forms.eps,
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

    def __call__(self, partial: Rows, stream: Stream, read: Callable[[Stream], Rows], step: Step) -> Stream:
        """The stream with attention and MLP added, all rows of the group on each of its ranks."""
        axes = axes_of(self.layout)
        stream = stream._replace(sum=stream.sum + psum(partial, axes["attn_tp"]))
        out = dense.dense(read(stream), values(self.weights), self.forms.activation, axes)
        return stream._replace(sum=stream.sum + out)


class ExpertMixture(nnx.Module):
    """The experts of a layer, with the exchanges that bring rows to them and back."""

    def __init__(self, forms: Forms, layout: Layout, weights: Any):
        self.forms, self.layout = forms, layout
        self.weights = parameters(weights)

    def __call__(self, partial: Rows, stream: Stream, read: Callable[[Stream], Rows], step: Step) -> Stream:
        """The stream with attention and experts added, all rows of the group on each of its ranks."""
        weights, counts = values(self.weights), step.counts[0]
        exchange = Exchange.of(self.layout, len(stream.sum), whole=weights.latent is not None)
        kept = Stream(exchange.keep(partial, stream.sum), tuple(map(exchange.kept, stream.blocks)))
        brought = exchange.spread(read(kept), counts)
        out = moe.moe(brought, exchange.real(counts), weights, self.forms.mixture, exchange)
        return stream._replace(sum=exchange.leave(out, counts, kept.sum))


class DecoderLayer(nnx.Module):
    """Norm, attention, norm, MLP or experts, around a residual stream that every rank of an attention group has.

    `opens`: the layer's attention is the first of a new block of a mixing stream.
    """

    def __init__(self, layer: Layer, forms: Forms, layout: Layout, opens: bool, weights: Any):
        self.eps, self.opens = forms.eps, opens
        self.residual = parameters(weights.get("residual"))
        self.input_norm = nnx.Param(weights["input_norm"])
        self.attention = _attention(layer.attention, forms, layout, weights["attention"])
        self.post_attention_norm = nnx.Param(weights["post_attention_norm"])
        ffn = ExpertMixture if isinstance(layer.ffn, MoE) else DenseMLP
        self.ffn = ffn(forms, layout, weights["ffn"])

    def __call__(
        self, stream: Stream, cache: Any, step: Step, rotation: Rotation | None, phase: Phase
    ) -> tuple[Stream, Any, Ring | None]:
        """The stream after the layer, its cache, and the ring of a linear-attention layer in a verify step."""
        rows = len(step.tokens)  # the stream is padded to equal parts of the attention group
        normed = self._read(ATTENTION, self.input_norm, stream)[:rows]
        partial, cache, ring = self.attention(normed, cache, step, rotation, phase)
        partial = jnp.pad(partial, ((0, len(stream.sum) - rows), (0, 0)))
        stream = open_block(stream) if self.opens else stream
        read = functools.partial(self._read, FFN, self.post_attention_norm)
        return self.ffn(partial, stream, read, step), cache, ring

    def _read(self, name: str, norm: nnx.Param, stream: Stream) -> Rows:
        return read_normed(stream, values(self.residual), name, norm.get_value(), self.eps)


def read_normed(stream: Stream, residual: Any, name: str, norm: Array, eps: float) -> Rows:
    """What a part of the decoder sees of the stream: a mixture of its blocks where there is one, normed."""
    seen = stream.sum if residual is None else mixture(stream, read_of(residual, name), eps)
    return rms_norm(seen, norm, eps)


def _attention(shape: Attention, forms: Forms, layout: Layout, weights: Any) -> nnx.Module:
    if isinstance(shape, KDA):
        return DeltaAttention(shape, forms, layout, weights)
    return CachedAttention(shape, forms, layout, weights)


def padded_rows(rows: int, axes: Axes) -> int:
    """Rows of an attention group, padded to equal parts of its ranks."""
    return -(-rows // axes.size("attn_tp")) * axes.size("attn_tp")
