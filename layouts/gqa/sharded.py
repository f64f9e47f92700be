"""Grouped-query attention inside `shard_map`: requests over attn_dp, query heads over attn_tp.

KV heads are cut over attn_tp as far as they go and repeated beyond (`repeated_kv`); DCP cuts the tokens among ranks
that hold the same KV head. Queries are gathered over dcp in every backend, and `combine` gives each rank its own heads.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from layouts.cache.attend import attend_shared, over_pages, over_rows
from layouts.cache.batch import Batch
from layouts.collectives import axis_index
from layouts.gqa.reference import Weights, attend_pairs, project
from layouts.gqa.shape import GQA
from layouts.kernels import PLAIN
from layouts.linear import linear
from layouts.mesh import Axes
from layouts.paged import RUN
from layouts.paged.attend import attend_pages
from layouts.paged.block import Entry
from layouts.rotary import Rotation


def repeated_kv(gqa: GQA, weight: Float[Array, "2*kv_heads*dim *inp"], attn_tp: int) -> Float[Array, "out *inp"]:
    """kv_proj (or kv_bias) as the ranks of an attention group hold it, side by side: KV heads repeated to attn_tp."""
    by_head = weight.reshape(gqa.kv_heads, 2 * gqa.head_dim, *weight.shape[1:])
    return jnp.repeat(by_head, max(1, attn_tp // gqa.kv_heads), axis=0).reshape(-1, *weight.shape[1:])


def entry_of(gqa: GQA) -> Entry:
    """What its pool keeps of a token and KV head."""
    return Entry(gqa.head_dim, gqa.head_dim, gqa.head_dim)


def own_kv_heads(gqa: GQA, attn_tp: int) -> int:
    """KV heads that a rank of an attention group keeps."""
    return max(gqa.kv_heads // attn_tp, 1)


def weight_shapes(gqa: GQA, attn_tp: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of one layer, whole; kv_proj and kv_bias with KV heads repeated to attn_tp."""
    query, pair = gqa.heads * gqa.head_dim, max(gqa.kv_heads, attn_tp) * 2 * gqa.head_dim
    return {
        "q_proj": (query, gqa.hidden),
        "kv_proj": (pair, gqa.hidden),
        "o_proj": (gqa.hidden, query),
        **({"q_bias": (query,), "kv_bias": (pair,), "o_bias": (gqa.hidden,)} if gqa.bias else {}),
        **({"qk_norm": (2 * gqa.head_dim,)} if gqa.qk_norm else {}),
        **({"sinks": (gqa.heads,)} if gqa.sinks else {}),
    }


def weight_specs(gqa: GQA, axes: Axes) -> dict[str, PartitionSpec]:
    """How whole weights are cut, kv_proj and kv_bias as `repeated_kv` gives them.

    The pool is each rank's own: `axes.spec(("attn_dp", "attn_tp"), None, None)`. Sinks are those of the DCP group.
    """
    by_head, vector = axes.spec("attn_tp", None), axes.spec("attn_tp")
    return {
        "q_proj": by_head,
        "kv_proj": by_head,
        "o_proj": axes.spec(None, "attn_tp"),
        **({"q_bias": vector, "kv_bias": vector, "o_bias": axes.spec(None)} if gqa.bias else {}),
        **({"qk_norm": axes.spec(None)} if gqa.qk_norm else {}),
        **({"sinks": axes.spec("dcp_groups")} if gqa.sinks else {}),
    }


def decode(
    gqa: GQA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    pool: Float[Array, "pool_rows own_kv_heads 2*dim"],
    batch: Batch,
    axes: Axes,
    *,
    backend: str,
    scale: float,
    eps: float,
    rotation: Rotation | None = None,
    form: str = PLAIN,
    run: int = RUN,
) -> tuple[Float[Array, "requests*verify hidden"], Float[Array, "pool_rows own_kv_heads 2*dim"]]:
    """This rank's partial sum over heads, which a psum over attn_tp makes whole, and its pool.

    `hidden` are all rows of the attention group, on each of its ranks, in request order; `batch` its addresses.
    `form` of the attention (`layouts.paged.attend.FORMS`); one that is not plain finds keys and values in pages, which
    are multiples of `run` rows.
    """
    query, pair = project(gqa, weights, hidden, rotation, eps)
    # one rank of the DCP group counts the sinks
    counts = axis_index(axes["dcp"]) == 0
    sinks = jnp.where(counts, weights["sinks"].astype(jnp.float32), -jnp.inf) if gqa.sinks else None
    if form == PLAIN:
        attend = over_rows(partial(attend_pairs, gqa, scale, sinks), gqa.window)
    else:
        paged = partial(attend_pages, entry=entry_of(gqa), scale=scale, run=run, form=form, sinks=sinks)
        attend = over_pages(paged, run, gqa.window)
    attended, pool = attend_shared(attend, query, pair, pool, batch, axes, backend, gather=True)
    return linear(attended.reshape(len(hidden), -1), weights["o_proj"], _once(gqa, weights, axes)), pool


def _once(gqa: GQA, weights: Weights, axes: Axes) -> jax.Array | None:
    """The output bias on the first rank of the attention group: the partial sums are added up."""
    if not gqa.bias:
        return None
    return jnp.where(axis_index(axes["attn_tp"]) == 0, weights["o_bias"], jnp.zeros_like(weights["o_bias"]))
