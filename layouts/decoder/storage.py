"""The weights of a stage as they are stored: in the formats of the model's precision, cut as the layout says.

A tree has a `layouts.stored.Stored` where a weight's format has scales. A table of embeddings stays plain, as rows of
it become the stream. Each rank holds the scales of its own part; over weight_shard only payloads are cut, as no scale
travels in a weight gather.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from layouts.decoder import weights
from layouts.decoder.stage import Part
from layouts.gqa import GQA
from layouts.mesh import Axes
from layouts.models.layer import Layer
from layouts.models.model import Model
from layouts.rules import LayoutError
from layouts.shapes import BF16
from layouts.stored import Stored, quantise, specs_of
from layouts.tensor import Format

_PLAIN: Final = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Place:
    """One weight of a tree, whole. `inputs`, `runs`: as `layouts.stored.quantise` takes them; `parts`: into which the
    layout cuts each dimension; `spec`: how, apart from rows over weight_shard."""

    shape: tuple[int, ...]
    format: Format
    inputs: int
    runs: int
    parts: tuple[int, ...]
    spec: PartitionSpec

    @property
    def scaled(self) -> bool:
        """Whether it is stored in blocks with scales."""
        return self.format.name not in _PLAIN

    def described(self, dtype: jax.typing.DTypeLike | None) -> Any:
        """Shapes and dtypes of what stands for it; `dtype`: of a weight without scales, None as it is stored."""
        if self.scaled:
            return _described(self)
        return jax.ShapeDtypeStruct(self.shape, _PLAIN[self.format.name] if dtype is None else dtype)

    def stored(self, weight: Float[Array, "..."]) -> Stored:
        """The whole weight, quantised, as the program takes it."""
        return quantise(weight, self.format, self.inputs, self.runs).cut(self.parts)

    def specs(self, spec: PartitionSpec, axes: Axes) -> Any:
        """Specs of what stands for it where the weight is cut as `spec`. LayoutError where that cuts a byte of two."""
        if not self.scaled:
            return spec
        stored = self.described(None)
        for axis, (size, ranks) in enumerate(
            zip(stored.payload.shape, _parts(spec, len(self.shape), axes), strict=True)
        ):
            if size % ranks:
                raise LayoutError(
                    f"a weight {self.shape} in {self.format.name} has {size} bytes along dimension {axis}, which "
                    f"{ranks} ranks cannot share: choose fewer"
                )
        return specs_of(stored, spec, self.spec)


def places(model: Model, part: Part, axes: Axes, shapes: Any) -> Any:
    """The tree of a stage's weights (`shapes`: theirs, whole) with a Place for each."""
    layers = [weights.layer_specs(model.layers[i], part.layout, axes, False) for i in part.layers]
    specs = {"layers": layers, **part.around(model, weights.model_specs(model, axes))}

    def place(path: Any, shape: tuple[int, ...], spec: PartitionSpec) -> Place:
        if path[0].key != "layers":
            return Place(shape, _format_around(model, path), 1, 1, _parts(spec, len(shape), axes), spec)
        return _in_layer(model, model.layers[part.layers[path[1].idx]], path[2:], shape, spec, axes)

    return jax.tree_util.tree_map_with_path(place, shapes, specs, is_leaf=weights.is_shape)


def _in_layer(model: Model, layer: Layer, path: Any, shape: tuple[int, ...], spec: PartitionSpec, axes: Axes) -> Place:
    tensor, inputs, runs = weights.tensor_at(layer, path), 1, 1
    while math.prod(shape[-inputs:]) < tensor.inp:
        inputs += 1
    if isinstance(layer.attention, GQA) and tensor.name == "kv_proj":
        runs = shape[0] // (2 * layer.attention.head_dim)  # KV heads are repeated one by one
    return Place(shape, tensor.format(model.precision), inputs, runs, _parts(spec, len(shape), axes), spec)


def _format_around(model: Model, path: Any) -> Format:
    """Of a weight beside the layers; a tied table is an embedding too."""
    named = {tensor.name: tensor for tensor in model.vocabulary()}
    name = weights.name_of(path)
    return BF16 if name == "embed_tokens" else named[name].format(model.precision)


@cache
def _described(place: Place) -> Any:
    """What `stored` makes, without making it; like layers share the trace."""
    return jax.eval_shape(place.stored, jax.ShapeDtypeStruct(place.shape, jnp.float32))


def _parts(spec: PartitionSpec, dimensions: int, axes: Axes) -> tuple[int, ...]:
    """Ranks along each dimension of an array that is cut as a spec says."""
    size_of = dict(zip(axes.names, axes.sizes, strict=True))
    entries = (*spec, *(None,) * (dimensions - len(spec)))
    names = ((entry,) if isinstance(entry, str) else entry or () for entry in entries)
    return tuple(math.prod(size_of[name] for name in of_one) for of_one in names)
