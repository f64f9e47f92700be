"""Weights of a decoder as its program holds them: shapes, how a layout cuts them, and in what they are stored.

A tree has the structure of the modules: for each layer its norms, its attention and its feed-forward part.
"""

from collections.abc import Mapping
from typing import Any, Final

import jax
from jax.sharding import PartitionSpec

import layouts.dense.sharded as dense
import layouts.dsa.sharded as dsa
import layouts.gqa.sharded as gqa
import layouts.kda.sharded as kda
import layouts.mla.sharded as mla
import layouts.moe.sharded as moe
import layouts.residual.attention_residual as mixture
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.mesh import Axes
from layouts.mla import MLA
from layouts.models.layer import Layer, programmed
from layouts.models.model import Model
from layouts.moe import MoE
from layouts.moe.exchange import form_of
from layouts.rules import LayoutError
from layouts.symbols import ATTENTION_SHARD, MOE_SHARD
from layouts.tensor import Tensor

Tree = Any
# Parts of a feed-forward tree and the tensors of the model's table that they hold.
_NAMES: Final[Mapping[str, str]] = {
    "latent/down": "latent_down_proj",
    "latent/up": "latent_up_proj",
    "latent/norm": "latent_norm",
    "shared/gate_up": "shared_gate_up_proj",
    "shared/down": "shared_down_proj",
    "gate_up": "gate_up_proj",
    "down": "down_proj",
}


def is_shape(leaf: object) -> bool:
    """Whether a node of a tree of shapes is a leaf."""
    return isinstance(leaf, tuple) and all(isinstance(size, int) for size in leaf)


def layer_shapes(layer: Layer, layout: Layout) -> Tree:
    """Shapes of one layer's weights, whole; KV heads repeated to attn_tp."""
    mixing = {} if layer.residual is None else {"residual": mixture.weight_shapes(layer.residual)}
    return {
        **mixing,
        "input_norm": (layer.hidden,),
        "attention": _attention_shapes(programmed(layer.attention), layout),
        "post_attention_norm": (layer.hidden,),
        "ffn": moe.weight_shapes(layer.ffn) if isinstance(layer.ffn, MoE) else dense.weight_shapes(layer.ffn),
    }


def _attention_shapes(attention: MLA | GQA | KDA, layout: Layout) -> Tree:
    match attention:
        case MLA():
            return (dsa if attention.indexer else mla).weight_shapes(attention)
        case GQA():
            return gqa.weight_shapes(attention, layout.attn_tp)
        case KDA():
            return kda.weight_shapes(attention)


def layer_specs(layer: Layer, layout: Layout, axes: Axes, sharded: bool) -> Tree:
    """How the layout cuts them; `sharded`: its TP1 weights are kept by rows over weight_shard."""
    ffn = moe.weight_specs(layer.ffn, axes, form_of(layout)) if isinstance(layer.ffn, MoE) else dense.weight_specs(axes)
    mixing = {} if layer.residual is None else {"residual": mixture.weight_shapes(layer.residual)}
    specs = {
        **{name: mixture.weight_specs(shapes, axes) for name, shapes in mixing.items()},
        "input_norm": axes.spec(None),
        "attention": _attention_specs(programmed(layer.attention), layout, axes),
        "post_attention_norm": axes.spec(None),
        "ffn": ffn,
    }
    if not sharded:
        return specs

    def by_rows(path: Any, spec: PartitionSpec, shape: tuple[int, ...]) -> PartitionSpec:
        if not is_sharded(layer, path, layout):
            return spec
        at = shard_axis(shape, layout.weight_shard)
        return axes.spec(*("weight_shard" if i == at else None for i in range(len(shape))))

    shapes = layer_shapes(layer, layout)
    return jax.tree_util.tree_map_with_path(
        by_rows, specs, shapes, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec) or is_shape(leaf)
    )


def _attention_specs(attention: MLA | GQA | KDA, layout: Layout, axes: Axes) -> Tree:
    match attention:
        case MLA():
            return (dsa if attention.indexer else mla).weight_specs(attention, axes, layout.dcp_backend)
        case GQA():
            return gqa.weight_specs(attention, axes)
        case KDA():
            return kda.weight_specs(attention, axes)


def is_sharded(layer: Layer, path: Any, layout: Layout) -> bool:
    """Whether the weight at a path of the layer's tree is kept by rows where the layer is weight-sharded (M17)."""
    shard = tensor_at(layer, path).shard
    whole_attention, whole_moe = layout.attn_tp == 1, layout.dispatch == "all_to_all"
    return (shard == ATTENTION_SHARD and whole_attention) or (shard == MOE_SHARD and whole_moe)


def shard_axis(shape: tuple[int, ...], ranks: int) -> int:
    """The axis along which a weight is kept in parts: the first that `ranks` divides."""
    for axis, size in enumerate(shape):
        if size % ranks == 0:
            return axis
    raise LayoutError(f"weight_shard = {ranks} divides no dimension of a weight {shape}: choose a divisor of one")


def tensor_at(layer: Layer, path: Any) -> Tensor:
    """The line of the model's table of tensors that the weight at a path of the layer's tree stands for."""
    name = name_of(path)
    return next(tensor for tensor in layer.tensors() if tensor.name == name)


def name_of(path: Any) -> str:
    """Name in the model's table of tensors."""
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    inside = "/".join(keys[1:] if len(keys) > 1 else keys)
    return _NAMES.get(inside, keys[-1])


def model_shapes(model: Model, layout: Layout) -> Tree:
    """Shapes of what stands around the layers; the vocabulary padded to a multiple of vocab_tp."""
    vocab = -(-model.vocab // layout.vocab_tp) * layout.vocab_tp
    head = {} if model.tied else {"lm_head": (vocab, model.hidden)}
    mixing = {} if model.residual is None else {"residual": mixture.output_shapes(model.residual)}
    return {"embed_tokens": (vocab, model.hidden), "final_norm": (model.hidden,), **head, **mixing}


def model_specs(model: Model, axes: Axes) -> Tree:
    """How the vocabulary is cut."""
    by_token = axes.spec("vocab_tp", None)
    head = {} if model.tied else {"lm_head": by_token}
    residual = model.residual
    mixing = {} if residual is None else {"residual": mixture.weight_specs(mixture.output_shapes(residual), axes)}
    return {"embed_tokens": by_token, "final_norm": axes.spec(None), **head, **mixing}
