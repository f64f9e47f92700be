"""Sparse attention on one device: every new row scores the tokens it may see and attends to its best `topk`.

A row's score of a token is sum over index heads h of w_h relu(q_h . k) / sqrt(head_dim heads), the lightning indexer of
the DeepSeek-V3.2 report, without its fp8 storage and the Hadamard turn that goes with it, which no dot product sees.
Weights go by the names of `Indexer.tensors`; index_k_norm is the LayerNorm's weight and behind it its bias.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts.cache.attend import attend_whole
from layouts.combine.partial import visible
from layouts.dsa.form import IndexForm
from layouts.dsa.shape import Indexer
from layouts.linear import linear
from layouts.mla.reference import Weights, absorbed, attend_latents, low_rank, output
from layouts.mla.shape import MLA
from layouts.rotary import Rotation, rotate
from layouts.serving.errors import EngineRuleError

_NOWHERE = jnp.iinfo(jnp.int32).max  # sorts behind every position


class Indexed(NamedTuple):
    """What the indexer makes of each row: queries and weights of its heads, and the key to keep."""

    query: Float[Array, "rows index_heads index_dim"]
    weight: Float[Array, "rows index_heads"]
    key: Float[Array, "rows index_dim"]


def indexer_of(mla: MLA) -> Indexer:
    """The indexer of a sparse layer; EngineRuleError for a layer without one."""
    if mla.indexer is None:
        raise EngineRuleError("the attention layer has no indexer: run layouts.mla, or give it one")
    return mla.indexer


def handed_on(
    chosen: Int[Array, "requests verify count"] | None,
) -> Int[Array, "requests verify count"]:
    """What the last full layer chose; EngineRuleError where there was none."""
    if chosen is None:
        raise EngineRuleError("a shared indexer reuses a choice and got none: pass that of the full layer before it")
    return chosen


def project_index(
    indexer: Indexer,
    weights: Weights,
    hidden: Float[Array, "rows hidden"],
    low: Float[Array, "rows q_lora"],
    rotation: Rotation | None,
    form: IndexForm,
) -> Indexed:
    """Index queries of the normed low-rank query `low`, weights and keys of the hidden states; weights are float32."""
    turn = None if rotation is None else Rotation(rotation.cos, rotation.sin, form.interleaved)
    query = linear(low if indexer.q_lora else hidden, weights["index_q_b_proj"])
    key = _layer_norm(linear(hidden, weights["index_k_proj"]), weights["index_k_norm"], form.eps)
    return Indexed(
        rotate(query.reshape(len(hidden), indexer.heads, indexer.head_dim), turn),
        linear(hidden, weights["index_weights_proj"]).astype(jnp.float32) * indexer.heads**-0.5,
        rotate(key[:, None], turn)[:, 0],
    )


def scores(
    indexed: Indexed, keys: Float[Array, "requests tokens index_dim"], seen: Bool[Array, "requests verify tokens"]
) -> Float[Array, "requests verify tokens"]:
    """Float32 score of every token for every row, -inf where it is not seen. What lies in unseen keys does not matter.

    Heads are summed one after another and not by a dot: tokens are scored alike in whatever share they are held.
    """
    requests, verify = seen.shape[:2]
    query = indexed.query.reshape(requests, verify, *indexed.query.shape[1:])
    weight = indexed.weight.reshape(requests, verify, -1, 1)
    dots = jnp.einsum("bqhd,btd->bqht", query, keys.astype(query.dtype), preferred_element_type=jnp.float32)
    score = (weight * jax.nn.relu(dots * query.shape[-1] ** -0.5)).sum(axis=2)
    return jnp.where(seen, score, -jnp.inf)


def best(
    score: Float[Array, "requests verify tokens"], positions: Int[Array, "requests verify tokens"], count: int
) -> tuple[Float[Array, "requests verify count"], Int[Array, "requests verify count"]]:
    """The `count` highest scores and their positions, equal scores by the lowest position; -1 for a score of -inf."""
    ranked = jnp.where(jnp.isneginf(score), _NOWHERE, positions)
    worst_last, ranked = jax.lax.sort((-score, ranked), dimension=-1, num_keys=2)
    ranked = ranked[..., :count]
    return -worst_last[..., :count], jnp.where(ranked == _NOWHERE, -1, ranked)


def decode(
    mla: MLA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    cache: Float[Array, "requests context kv_values"],
    index_cache: Float[Array, "requests context index_dim"],
    lengths: Int[Array, " requests"],
    chosen: Int[Array, "requests verify count"] | None = None,
    *,
    scale: float,
    eps: float,
    index_form: IndexForm,
    rotation: Rotation | None = None,
) -> tuple[
    Float[Array, "requests*verify hidden"],
    Float[Array, "requests context kv_values"],
    Float[Array, "requests context index_dim"],
    Int[Array, "requests verify count"],
]:
    """`layouts.mla.reference.decode` over the tokens that each row chooses: output, both caches, and the choice.

    `chosen` are positions, -1 where a row sees fewer than min(topk, context) tokens. A full layer makes its own and
    leaves what it is given; a shared one takes those of the layer before, and EngineRuleError without them.
    """
    indexer = indexer_of(mla)
    low, latent = low_rank(mla, weights, hidden, eps)
    query, latent = absorbed(mla, weights, low, latent, rotation, eps)
    if indexer.shared:
        chosen = handed_on(chosen)
    else:
        indexed = project_index(indexer, weights, hidden, low, rotation, index_form)
        index_cache, chosen = _choose(indexer, indexed, index_cache, lengths)
    kept = _among(chosen, cache.shape[1])

    def attend(
        query: Float[Array, "requests verify heads kv_values"],
        latents: Float[Array, "requests context kv_values"],
        seen: Bool[Array, "requests verify context"],
    ) -> tuple[Float[Array, "requests verify heads kv_lora"], Float[Array, "requests verify heads"]]:
        return attend_latents(mla, scale, query, latents, seen & kept)

    attended, cache = attend_whole(attend, query, latent, cache, lengths)
    return output(mla, weights, hidden, attended), cache, index_cache, chosen


def _choose(
    indexer: Indexer,
    indexed: Indexed,
    cache: Float[Array, "requests context index_dim"],
    lengths: Int[Array, " requests"],
) -> tuple[Float[Array, "requests context index_dim"], Int[Array, "requests verify count"]]:
    requests, context = cache.shape[:2]
    positions = lengths[:, None] + jnp.arange(len(indexed.key) // requests, dtype=lengths.dtype)[None, :]
    keys = indexed.key.reshape(*positions.shape, -1).astype(cache.dtype)
    cache = cache.at[jnp.arange(requests)[:, None], positions].set(keys)
    tokens = jnp.broadcast_to(jnp.arange(context, dtype=lengths.dtype)[None, :], (requests, context))
    score = scores(indexed, cache, visible(positions, tokens))
    chosen = best(score, jnp.broadcast_to(tokens[:, None, :], score.shape), min(indexer.topk, context))[1]
    return cache, chosen


def _among(chosen: Int[Array, "requests verify count"], context: int) -> Bool[Array, "requests verify context"]:
    """Which positions are chosen."""
    positions = jnp.arange(context, dtype=chosen.dtype)[None, None, None, :]
    return (chosen[..., None] == positions).any(axis=2)


def _layer_norm(
    x: Float[Array, "rows dim"], weight_and_bias: Float[Array, " 2*dim"], eps: float
) -> Float[Array, "rows dim"]:
    """In float32 until the end."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + eps)
    weight, bias = jnp.split(weight_and_bias.astype(jnp.float32)[None, :], 2, axis=1)
    return (scaled * weight + bias).astype(x.dtype)
