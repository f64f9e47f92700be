"""A pipeline stage of a decoder as one Flax module: its layers, the embedding of the first, the head of the last."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from layouts.decoder import staging, weights
from layouts.decoder.modules import Carried, DecoderLayer, padded_rows, parameters, read_normed, values
from layouts.decoder.step import Phase, Step
from layouts.kernels import ALL_PLAIN, Kernels
from layouts.layout import Layout
from layouts.mesh import Axes, axes_of
from layouts.models.forms import Forms
from layouts.models.model import Model
from layouts.residual.attention_residual import Stream
from layouts.residual.shape import OUTPUT
from layouts.rotary import Rotation
from layouts.stages import stage_bounds
from layouts.stored import is_stored
from layouts.vocab import reference as vocabulary
from layouts.vocab import sharded as vocab
from layouts.weight_gather.sharded import Weights
from layouts.weight_gather.work import SCOPE


class Output(NamedTuple):
    """The best token of every row and its logits, in the dtype of the activations; of a request's last row in a
    prefill."""

    tokens: Int[Array, " rows"]
    logits: Float[Array, "rows vocab"]


class Stepped(NamedTuple):
    """What a stage leaves: what the next one is given or the output, and caches."""

    leaving: Any
    caches: tuple[Any, ...]


class Part(NamedTuple):
    """Which part of a layout's program a stage is. `layout` is that of the stage alone (pp = 1)."""

    stage: int
    stages: int
    layers: range
    layout: Layout
    sharded: frozenset[int]

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1

    def around(self, model: Model, whole: Mapping[str, Any]) -> dict[str, Any]:
        """What the stage holds of a tree of weights beside the layers: a table to embed with, or a norm and a head."""
        table = self.first or (self.last and model.tied)
        return {name: tree for name, tree in whole.items() if (table if name == "embed_tokens" else self.last)}


def parts_of(model: Model, layout: Layout) -> tuple[Part, ...]:
    """The stages of a layout, in order."""
    kept = layout.weight_shard_layers
    sharded = frozenset(range(kept.first, kept.last + 1))
    bounds = [stage_bounds(len(model.layers), stage, layout.pp) for stage in range(layout.pp)]
    alone = replace(layout, pp=1)
    return tuple(
        Part(stage, layout.pp, range(first, last + 1), alone, sharded) for stage, (first, last) in enumerate(bounds)
    )


class Stage(nnx.Module):
    """Called inside `shard_map`. Like layers are traced once, and layers kept by rows gathered one ahead."""

    def __init__(self, model: Model, forms: Forms, part: Part, kernels: Kernels, held: Mapping[str, Any]):
        self.part, self.forms, self.vocab, self.tied = part, forms, model.vocab, model.tied
        self.gather = kernels.weight_gather.form
        layers = zip(part.layers, held["layers"], strict=True)
        self.layers = nnx.List([_decoder_layer(model, forms, part, kernels, i, tree) for i, tree in layers])
        self.along = tuple(
            _along(model, forms, part, i, tree) for i, tree in zip(part.layers, held["layers"], strict=True)
        )
        if part.first or (part.last and model.tied):
            self.embed_tokens = nnx.Param(held["embed_tokens"])
        if part.last:
            self.residual = parameters(held.get("residual"))
            self.final_norm = nnx.Param(held["final_norm"])
            if not model.tied:
                self.lm_head = parameters(held["lm_head"])

    def __call__(self, entering: Any, caches: tuple[Any, ...], step: Step, phase: Phase) -> Stepped:
        """`entering`: tokens of an attention group in the first stage, what the stage before left in any other."""
        axes = axes_of(self.part.layout)
        carried = Carried(Stream(self._embedded(entering, axes))) if self.part.first else entering
        carried, caches = self._through_layers(carried, caches, step, phase, axes)
        leaving = self._output(carried.stream, step, phase, axes) if self.part.last else carried
        return Stepped(leaving, caches)

    def _embedded(self, tokens: Int[Array, " rows"], axes: Axes) -> Float[Array, "padded hidden"]:
        with jax.named_scope("embed"):
            missing = padded_rows(len(tokens), axes) - len(tokens)
            return vocab.embed(self.embed_tokens.get_value(), jnp.pad(tokens, (0, missing)), axes)

    def _through_layers(
        self, carried: Carried, caches: tuple[Any, ...], step: Step, phase: Phase, axes: Axes
    ) -> tuple[Carried, tuple[Any, ...]]:
        split = [nnx.split(layer) for layer in self.layers]
        rotation = self._rotation(step)
        buffer = self._arriving(split, 0, carried, axes)
        after = []
        for i, (graph, held) in enumerate(split):
            if buffer is not None:
                held = staging.staged(held, self.along[i], buffer)
            buffer = self._arriving(split, i + 1, carried, axes)
            carried, cache = _layer(graph, held, carried, caches[i], step, rotation, phase)
            if buffer is not None:
                carried, buffer = staging.arrived(carried, buffer)
            after.append(cache)
        return carried, tuple(after)

    def _arriving(self, split: list[Any], i: int, carried: Carried, axes: Axes) -> Weights | None:
        """The staging buffer of a layer, if it is kept by rows. `carried`: to the layer that hides its arrival."""
        if i >= len(split) or all(axis == staging.WHOLE for axis in self.along[i]):
            return None
        with jax.named_scope(SCOPE):
            return staging.arriving(split[i][1], self.along[i], axes, carried, self.gather)

    def _rotation(self, step: Step) -> Rotation | None:
        rotary = self.forms.rotary
        return None if rotary is None else rotary.at(step.batch.positions(step.width).reshape(-1))

    def _output(self, stream: Stream, step: Step, phase: Phase, axes: Axes) -> Output:
        with jax.named_scope("logits"):
            rows = len(step.tokens)
            if phase == "prefill":
                rows = len(step.new)
                last = jnp.arange(rows, dtype=step.new.dtype) * step.width + jnp.maximum(step.new - 1, 0)
                stream = jax.tree.map(lambda x: x[last], stream)
            normed = read_normed(stream, values(self.residual), OUTPUT, self.final_norm.get_value(), self.forms.eps)
            head = values(self.embed_tokens if self.tied else self.lm_head)
            scores = vocab.logits(normed, head, axes, self.vocab)
            whole = vocab.whole_logits(scores, axes)[:rows, : self.vocab]
            return Output(vocabulary.greedy(whole), whole)


@partial(jax.jit, static_argnums=(0, 6))
def _layer(
    graph: Any, held: Any, carried: Carried, cache: Any, step: Step, rotation: Rotation | None, phase: Phase
) -> tuple[Carried, Any]:
    """One layer; like layers share its trace."""
    return nnx.merge(graph, held)(carried, cache, step, rotation, phase)


def _along(model: Model, forms: Forms, part: Part, layer: int, held: Any) -> staging.Along:
    """For each leaf of a layer's parameters the axis that it is kept in parts along; scales are whole."""
    shape, layout = model.layers[layer], part.layout

    def along(path: Any, size: tuple[int, ...], weight: Any) -> Any:
        whole = jax.tree.map(lambda _: staging.WHOLE, weight)
        if layer not in part.sharded or not weights.is_sharded(shape, path, layout):
            return whole
        axis = weights.shard_axis(size, layout.weight_shard)
        return replace(whole, payload=axis) if is_stored(weight) else axis

    shapes = weights.layer_shapes(shape, layout)
    tree = jax.tree_util.tree_map_with_path(along, shapes, held, is_leaf=weights.is_shape)
    return tuple(jax.tree.leaves(nnx.split(_decoder_layer(model, forms, part, ALL_PLAIN, layer, tree))[1]))


def _decoder_layer(model: Model, forms: Forms, part: Part, kernels: Kernels, layer: int, tree: Any) -> DecoderLayer:
    opens = model.residual is not None and model.residual.opens(layer)
    return DecoderLayer(model.layers[layer], forms, part.layout, kernels, opens, tree)
