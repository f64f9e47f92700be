"""Attention residuals (Kimi K3): what a layer reads is a softmax mixture over earlier states of the residual stream.

Every block_size layers the stream so far is put aside as a block and starts anew. A read scores each block and the
running sum of the current one by its RMSNorm times a weight vector, and mixes them by the softmax of the scores:
    score_i = sum(norm * proj * x_i) / sqrt(mean(x_i^2) + eps);    read = sum_i softmax(score)_i x_i.
All in float32. Layer 0 has no block before it and reads the embedding as it is. (Formula: pytorch/torchtitan,
`models/kimi_k3/model.py`; SGLang, `layers/attn_residual.py`, does the same.)

Rows do not meet: inside `shard_map` a read needs no exchange, and a rank keeps the blocks of the rows that it keeps of
the stream. Nothing stays from step to step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from layouts.mesh import Axes
from layouts.residual.shape import ATTENTION, FFN, OUTPUT, AttentionResidual


class Read(NamedTuple):
    """Weights of one read, as the checkpoint has them."""

    norm: Float[Array, " hidden"]
    proj: Float[Array, "1 hidden"]


class Stream(NamedTuple):
    """What goes from layer to layer in place of the residual: the sum since the last block opened, and the blocks.

    The number of blocks is part of the type: they are apart, so that one more costs no copy of the others.
    """

    sum: Float[Array, "rows hidden"]
    blocks: tuple[Float[Array, "rows hidden"], ...] = ()


def open_block(stream: Stream) -> Stream:
    """The stream after the attention of an opening layer has read it: its sum is a block, and the next one is empty."""
    return Stream(jnp.zeros_like(stream.sum), (*stream.blocks, stream.sum))


def mixture(stream: Stream, read: Read, eps: float) -> Float[Array, "rows hidden"]:
    """What a read makes of the stream. Without blocks the sum itself: one score has a softmax of one."""
    if not stream.blocks:
        return stream.sum
    entries = jnp.stack((*stream.blocks, stream.sum)).astype(jnp.float32)
    weight = (read.norm.astype(jnp.float32) * read.proj[0].astype(jnp.float32))[None, None]
    # Products and sums and no dot: an accelerator may round the float32 operands of a dot.
    scores = (entries * weight).sum(axis=-1) * jax.lax.rsqrt(jnp.square(entries).mean(axis=-1) + eps)
    mixed = (jax.nn.softmax(scores, axis=0)[..., None] * entries).sum(axis=0)
    return mixed.astype(stream.sum.dtype)


def weight_shapes(shape: AttentionResidual) -> dict[str, tuple[int, ...]]:
    """Shape of the weights that a layer has beside those of its parts, whole."""
    return {**_read_shapes(shape, ATTENTION), **_read_shapes(shape, FFN)}


def output_shapes(shape: AttentionResidual) -> dict[str, tuple[int, ...]]:
    """Shape of the weights of the read before the model's last norm."""
    return _read_shapes(shape, OUTPUT)


def _read_shapes(shape: AttentionResidual, name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}_norm": (shape.hidden,), f"{name}_proj": (1, shape.hidden)}


def weight_specs(shapes: dict[str, tuple[int, ...]], axes: Axes) -> dict[str, PartitionSpec]:
    """How they are cut: not at all."""
    return {name: axes.spec(*(None,) * len(shape)) for name, shape in shapes.items()}


def read_of(weights: dict[str, Array], name: str) -> Read:
    """The weights of one read (`ATTENTION`, `FFN` or `OUTPUT`) out of such a tree."""
    return Read(weights[f"{name}_norm"], weights[f"{name}_proj"])
