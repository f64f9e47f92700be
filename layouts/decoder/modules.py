"""Flax modules of a decoder layer. They hold whole weights outside `shard_map` and a rank's part inside, where they
are called: attention brings a part of a sum over the attention group, and the layer adds it to the stream.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

import layouts.dense.sharded as dense
import layouts.dsa.sharded as dsa
import layouts.gqa.sharded as gqa
import layouts.kda.verify as kda
import layouts.mla.sharded as mla
import layouts.moe.sharded as moe
from layouts.collectives import psum
from layouts.decoder.cache import INDEX_DESIGN, Sparse
from layouts.decoder.step import Phase, Step
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.kda.slots import Slots
from layouts.kernels import Kernels
from layouts.layout import Layout
from layouts.mesh import Axes, axes_of
from layouts.mla import MLA
from layouts.models.forms import Forms
from layouts.models.layer import Layer, Programmed, programmed
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


class Carried(NamedTuple):
    """What goes from layer to layer: the stream, and the tokens that the last full index chose for every row."""

    stream: Stream
    chosen: Int[Array, "requests verify count"] | None = None


class Attended(NamedTuple):
    """What attention leaves: a part of a sum over attn_tp, its cache, and the index's choice."""

    partial: Rows
    cache: Any
    chosen: Int[Array, "requests verify count"] | None


class SparseAttention(nnx.Module):
    """MLA over the tokens that an index chooses, or that the last full index chose."""

    def __init__(self, shape: MLA, forms: Forms, layout: Layout, kernels: Kernels, weights: Any):
        assert forms.index is not None
        self.kernel = kernels.attention.form
        self.shape, self.forms, self.layout, self.index = shape, forms, layout, forms.index
        self.weights = parameters(weights)

    def __call__(
        self, hidden: Rows, cache: Sparse, step: Step, rotation: Rotation | None, phase: Phase, chosen: Array | None
    ) -> Attended:
        """Attention of all rows of the group over this rank's share of the chosen tokens."""
        partial, latents, keys, chosen = dsa.decode(
            self.shape,
            values(self.weights),
            hidden,
            cache.latents,
            cache.keys,
            step.batch,
            axes_of(self.layout),
            chosen,
            backend=self.layout.dcp_backend,
            design=INDEX_DESIGN,
            scale=self.forms.scale,
            eps=self.forms.eps,
            index_form=self.index,
            rotation=rotation,
        )
        return Attended(partial, Sparse(latents, keys), chosen)


class CachedAttention(nnx.Module):
    """MLA or GQA over a paged pool."""

    def __init__(self, shape: MLA | GQA, forms: Forms, layout: Layout, kernels: Kernels, weights: Any):
        self.shape, self.forms, self.layout = shape, forms, layout
        self.kernel = kernels.attention.form
        self.weights = parameters(weights)

    def __call__(
        self, hidden: Rows, cache: Array, step: Step, rotation: Rotation | None, phase: Phase, chosen: Array | None
    ) -> Attended:
        """Attention of all rows of the group over this rank's share of the tokens."""
        module: Any = mla if isinstance(self.shape, MLA) else gqa
        partial, pool = module.decode(
            self.shape,
            values(self.weights),
            hidden,
            cache,
            step.batch,
            axes_of(self.layout),
            backend=self.layout.dcp_backend,
            scale=self.forms.scale,
            eps=self.forms.eps,
            rotation=rotation,
            form=self.kernel,
        )
        return Attended(partial, pool, chosen)


class DeltaAttention(nnx.Module):
    """KDA over state slots. Verified tokens stay in a ring until the next step says how many of them were accepted."""

    def __init__(self, forms: Forms, kernels: Kernels, weights: Any):
        assert forms.kda is not None
        self.form, self.kernel = forms.kda, kernels.state.form
        self.weights = parameters(weights)

    def __call__(
        self, hidden: Rows, cache: Slots, step: Step, rotation: Rotation | None, phase: Phase, chosen: Array | None
    ) -> Attended:
        """This rank's heads of all rows of the group."""
        rows = hidden.reshape(-1, step.width, hidden.shape[-1])
        weights = values(self.weights)
        if phase == "verify":
            partial, cache = kda.verify(rows, cache, step.standing, weights, self.form, self.kernel)
        else:
            partial, cache = kda.prefill(rows, cache, step.standing, step.new, weights, self.form)
        return Attended(partial.reshape(hidden.shape), cache, chosen)


class DenseMLP(nnx.Module):
    """The gated MLP of a dense layer, behind an all-reduce over the attention group."""

    def __init__(self, forms: Forms, layout: Layout, kernels: Kernels, weights: Any):
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

    def __init__(self, forms: Forms, layout: Layout, kernels: Kernels, weights: Any):
        self.forms, self.layout = forms, layout
        self.kernel = kernels.grouped_gemm.form
        self.weights = parameters(weights)

    def __call__(self, partial: Rows, stream: Stream, read: Callable[[Stream], Rows], step: Step) -> Stream:
        """The stream with attention and experts added, all rows of the group on each of its ranks."""
        weights, counts = values(self.weights), step.counts[0]
        exchange = Exchange.of(self.layout, len(stream.sum), whole=weights.latent is not None)
        kept = Stream(exchange.keep(partial, stream.sum), tuple(map(exchange.kept, stream.blocks)))
        brought = exchange.spread(read(kept), counts)
        out = moe.moe(brought, exchange.real(counts), weights, self.forms.mixture, exchange, self.kernel)
        return stream._replace(sum=exchange.leave(out, counts, kept.sum))


class DecoderLayer(nnx.Module):
    """Norm, attention, norm, MLP or experts, around a residual stream that every rank of an attention group has.

    `opens`: the layer's attention is the first of a new block of a mixing stream.
    """

    def __init__(self, layer: Layer, forms: Forms, layout: Layout, kernels: Kernels, opens: bool, weights: Any):
        self.eps, self.opens = forms.eps, opens
        self.residual = parameters(weights.get("residual"))
        self.input_norm = nnx.Param(weights["input_norm"])
        self.attention = _attention(programmed(layer.attention), forms, layout, kernels, weights["attention"])
        self.post_attention_norm = nnx.Param(weights["post_attention_norm"])
        ffn = ExpertMixture if isinstance(layer.ffn, MoE) else DenseMLP
        self.ffn = ffn(forms, layout, kernels, weights["ffn"])

    def __call__(
        self, carried: Carried, cache: Any, step: Step, rotation: Rotation | None, phase: Phase
    ) -> tuple[Carried, Any]:
        """What the next layer is given, and the layer's cache."""
        stream, rows = carried.stream, len(step.tokens)  # the stream is padded to equal parts of the attention group
        normed = self._read(ATTENTION, self.input_norm, stream)[:rows]
        attended = self.attention(normed, cache, step, rotation, phase, carried.chosen)
        partial = jnp.pad(attended.partial, ((0, len(stream.sum) - rows), (0, 0)))
        stream = open_block(stream) if self.opens else stream
        read = functools.partial(self._read, FFN, self.post_attention_norm)
        return Carried(self.ffn(partial, stream, read, step), attended.chosen), attended.cache

    def _read(self, name: str, norm: nnx.Param, stream: Stream) -> Rows:
        return read_normed(stream, values(self.residual), name, norm.get_value(), self.eps)


def read_normed(stream: Stream, residual: Any, name: str, norm: Array, eps: float) -> Rows:
    """What a part of the decoder sees of the stream: a mixture of its blocks where there is one, normed."""
    seen = stream.sum if residual is None else mixture(stream, read_of(residual, name), eps)
    return rms_norm(seen, norm, eps)


def _attention(shape: Programmed, forms: Forms, layout: Layout, kernels: Kernels, weights: Any) -> nnx.Module:
    if isinstance(shape, KDA):
        return DeltaAttention(forms, kernels, weights)
    if isinstance(shape, MLA) and shape.indexer is not None:
        return SparseAttention(shape, forms, layout, kernels, weights)
    return CachedAttention(shape, forms, layout, kernels, weights)


def padded_rows(rows: int, axes: Axes) -> int:
    """Rows of an attention group, padded to equal parts of its ranks."""
    return -(-rows // axes.size("attn_tp")) * axes.size("attn_tp")
