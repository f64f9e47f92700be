"""Grouped-query attention on one device: decode and verify over a whole cache, full or in a window.

Weights go by the names of `GQA.tensors`, (out, in) like a checkpoint's. The rows of kv_proj and kv_bias are grouped by
KV head, its keys and then its values, so that a cut by KV heads is a cut of rows; `grouped_kv` makes them.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts.cache.attend import attend_whole
from layouts.combine.partial import attend
from layouts.gqa.shape import GQA
from layouts.linear import linear
from layouts.residual.reference import rms_norm
from layouts.rotary import Rotation, rotate

Weights = Mapping[str, Array]


class Projected(NamedTuple):
    """Queries, and keys followed by values as the cache keeps them."""

    query: Float[Array, "rows heads dim"]
    pair: Float[Array, "rows kv_heads 2*dim"]


def grouped_kv(
    gqa: GQA, key: Float[Array, "kv_heads*dim *inp"], value: Float[Array, "kv_heads*dim *inp"]
) -> Float[Array, "2*kv_heads*dim *inp"]:
    """kv_proj (or kv_bias) of the checkpoint's k_proj and v_proj."""
    rest = key.shape[1:]
    parts = [x.reshape(gqa.kv_heads, gqa.head_dim, *rest) for x in (key, value)]
    return jnp.concatenate(parts, axis=1).reshape(-1, *rest)


def project(
    gqa: GQA, weights: Weights, hidden: Float[Array, "rows hidden"], rotation: Rotation | None, eps: float
) -> Projected:
    """Queries and KV pairs of the heads that the weights hold, normed (Qwen3) and rotated."""
    rows, dim = len(hidden), gqa.head_dim
    query = linear(hidden, weights["q_proj"], weights["q_bias"] if gqa.bias else None).reshape(rows, -1, dim)
    pair = linear(hidden, weights["kv_proj"], weights["kv_bias"] if gqa.bias else None).reshape(rows, -1, 2 * dim)
    key, value = pair[..., :dim], pair[..., dim:]
    if gqa.qk_norm:
        query, key = rms_norm(query, weights["qk_norm"][:dim], eps), rms_norm(key, weights["qk_norm"][dim:], eps)
    return Projected(rotate(query, rotation), jnp.concatenate([rotate(key, rotation), value], axis=-1))


def attend_pairs(
    gqa: GQA,
    scale: float,
    sinks: Float[Array, " heads"] | None,
    query: Float[Array, "requests verify heads dim"],
    pairs: Float[Array, "requests tokens kv_heads 2*dim"],
    seen: Bool[Array, "requests verify tokens"],
) -> tuple[Float[Array, "requests verify heads dim"], Float[Array, "requests verify heads"]]:
    """Attention over cached keys and values; and the log-sum-exp."""
    return attend(query, pairs[..., : gqa.head_dim], pairs[..., gqa.head_dim :], seen, scale, sinks)


def decode(
    gqa: GQA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    cache: Float[Array, "requests context kv_heads 2*dim"],
    lengths: Int[Array, " requests"],
    *,
    scale: float,
    eps: float,
    rotation: Rotation | None = None,
) -> tuple[Float[Array, "requests*verify hidden"], Float[Array, "requests context kv_heads 2*dim"]]:
    """Attention of `verify` new tokens a request (rows in request order), each seeing those before it, and the cache.

    `lengths` tokens of each request are cached before; the new ones are written behind them.
    """
    query, pair = project(gqa, weights, hidden, rotation, eps)
    sinks = weights["sinks"] if gqa.sinks else None
    attended, cache = attend_whole(partial(attend_pairs, gqa, scale, sinks), query, pair, cache, lengths, gqa.window)
    bias = weights["o_bias"] if gqa.bias else None
    return linear(attended.reshape(len(hidden), -1), weights["o_proj"], bias), cache
