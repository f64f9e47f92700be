"""Attention of the requests of a decode or verify step over the tokens that one rank holds, of any grouping of heads.

The part that a rank computes, as `combine` takes it: output and log-sum-exp, base e.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def visible(
    rows: Int[Array, "requests verify"], tokens: Int[Array, "requests tokens"], window: int = 0
) -> Bool[Array, "requests verify tokens"]:
    """Which tokens each row may see, by position: itself and those before it, of them the last `window` (0: all)."""
    distance = rows[:, :, None] - tokens[:, None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def attend(
    query: Float[Array, "requests verify heads key"],
    keys: Float[Array, "requests tokens kv_heads key"],
    values: Float[Array, "requests tokens kv_heads width"],
    seen: Bool[Array, "requests verify tokens"],
    scale: float,
    sinks: Float[Array, " heads"] | None = None,
) -> tuple[Float[Array, "requests verify heads width"], Float[Array, "requests verify heads"]]:
    """Attention output (dtype of the query) and float32 log-sum-exp of each row; zero and -inf where it sees nothing.

    heads / kv_heads query heads in a row share a KV head. `sinks` is a logit a head that takes weight and brings no
    value; of several ranks only one may count it, the others pass -inf. What lies in tokens that no row sees, NaN
    included, does not matter.
    """
    requests, verify, heads, key = query.shape
    kv_heads = keys.shape[2]
    grouped = query.reshape(requests, verify, kv_heads, heads // kv_heads, key)
    scores = jnp.einsum("bqgrk,btgk->bqgrt", grouped, keys.astype(query.dtype), preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, :, None, None, :], scores * scale, -jnp.inf)
    sink = jnp.full((heads,), -jnp.inf, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    sink = sink.reshape(1, 1, *grouped.shape[2:4])
    highest = jnp.maximum(scores.max(axis=-1, initial=-jnp.inf), sink)
    shift = jnp.where(jnp.isneginf(highest), 0.0, highest)
    weights = jnp.exp(scores - shift[..., None])
    total = weights.sum(axis=-1) + jnp.exp(sink - shift)
    used = jnp.where(seen.any(axis=1)[:, :, None, None], values.astype(query.dtype), 0)
    summed = jnp.einsum("bqgrt,btgw->bqgrw", weights.astype(query.dtype), used, preferred_element_type=jnp.float32)
    output = summed / jnp.where(total > 0, total, 1.0)[..., None]
    lse = shift + jnp.log(total)
    return output.astype(query.dtype).reshape(*query.shape[:3], -1), lse.reshape(requests, verify, heads)
