"""Multi-head latent attention on one device: decode and verify with kv_b absorbed, over a whole latent cache.

Weights go by the names of `MLA.tensors`, (out, in) like a checkpoint's; w_kc and w_vc are (heads, out, in).
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts.cache.attend import attend_whole
from layouts.combine.partial import attend
from layouts.linear import contract, linear
from layouts.mla.shape import MLA
from layouts.residual.reference import rms_norm
from layouts.rotary import Rotation, rotate

Weights = Mapping[str, Array]


def absorb(
    mla: MLA, kv_b: Float[Array, "heads*(nope+v) kv_lora"]
) -> tuple[Float[Array, "heads kv_lora nope"], Float[Array, "heads v kv_lora"]]:
    """w_kc and w_vc of the checkpoint's kv_b_proj."""
    by_head = kv_b.reshape(-1, mla.nope + mla.v, mla.kv_lora)
    return by_head[:, : mla.nope].swapaxes(1, 2), by_head[:, mla.nope :]


def low_rank(
    mla: MLA, weights: Weights, hidden: Float[Array, "rows hidden"], eps: float
) -> tuple[Float[Array, "rows inp"], Float[Array, "rows kv_values"]]:
    """What queries are made of, the normed low-rank query or the hidden state; and the latent before its norm."""
    if not mla.q_lora:
        return hidden, linear(hidden, weights["kv_a_proj"])
    both = linear(hidden, weights["fused_qkv_a_proj"])
    return rms_norm(both[:, : mla.q_lora], weights["q_a_norm"], eps), both[:, mla.q_lora :]


def absorbed(
    mla: MLA,
    weights: Weights,
    low: Float[Array, "rows inp"],
    latent: Float[Array, "rows kv_values"],
    rotation: Rotation | None,
    eps: float,
) -> tuple[Float[Array, "rows heads kv_values"], Float[Array, "rows kv_values"]]:
    """`project` from what `low_rank` gives."""
    query = linear(low, weights["q_b_proj" if mla.q_lora else "q_proj"])
    query = query.reshape(len(low), -1, mla.nope + mla.rope)
    by_latent = by_head(query[..., : mla.nope], weights["w_kc"])
    normed = rms_norm(latent[:, : mla.kv_lora], weights["kv_a_norm"], eps)
    turned = rotate(latent[:, None, mla.kv_lora :], rotation)[:, 0]
    query = jnp.concatenate([by_latent, rotate(query[..., mla.nope :], rotation)], axis=-1)
    return query, jnp.concatenate([normed, turned], axis=-1)


def project(
    mla: MLA, weights: Weights, hidden: Float[Array, "rows hidden"], rotation: Rotation | None, eps: float
) -> tuple[Float[Array, "rows heads kv_values"], Float[Array, "rows kv_values"]]:
    """Absorbed queries of the heads that the weights hold, and what the cache keeps of each row."""
    return absorbed(mla, weights, *low_rank(mla, weights, hidden, eps), rotation, eps)


def output(
    mla: MLA, weights: Weights, hidden: Float[Array, "rows hidden"], attended: Float[Array, "rows heads kv_lora"]
) -> Float[Array, "rows hidden"]:
    """Values, output gate and o_proj of the heads that the weights hold: a partial sum where those are not all."""
    value = by_head(attended, weights["w_vc"]).reshape(len(hidden), -1)
    if mla.output_gate:
        value = value * jax.nn.sigmoid(linear(hidden, weights["gate_proj"]))
    return linear(value, weights["o_proj"])


def decode(
    mla: MLA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    cache: Float[Array, "requests context kv_values"],
    lengths: Int[Array, " requests"],
    *,
    scale: float,
    eps: float,
    rotation: Rotation | None = None,
) -> tuple[Float[Array, "requests*verify hidden"], Float[Array, "requests context kv_values"]]:
    """Attention of `verify` new tokens a request (rows in request order), each seeing those before it, and the cache.

    `lengths` tokens of each request are cached before; the new ones are written behind them.
    """
    query, latent = project(mla, weights, hidden, rotation, eps)
    attended, cache = attend_whole(partial(attend_latents, mla, scale), query, latent, cache, lengths)
    return output(mla, weights, hidden, attended), cache


def attend_latents(
    mla: MLA,
    scale: float,
    query: Float[Array, "requests verify heads kv_values"],
    latents: Float[Array, "requests tokens kv_values"],
    seen: Bool[Array, "requests verify tokens"],
) -> tuple[Float[Array, "requests verify heads kv_lora"], Float[Array, "requests verify heads"]]:
    """Attention over latents as one KV head, its values the first `kv_lora` of its keys; and the log-sum-exp."""
    keys = latents[:, :, None, :]
    return attend(query, keys, keys[..., : mla.kv_lora], seen, scale)


def by_head(x: Float[Array, "rows heads inp"], weight: Float[Array, "heads out inp"]) -> Float[Array, "rows heads out"]:
    """One product a head, summed in float32, in the dtype of x."""
    return contract("rhi,hoi->rho", x, weight)
