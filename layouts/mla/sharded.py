"""Multi-head latent attention inside `shard_map`: requests over attn_dp, heads over attn_tp, latents over dcp.

The latent of a new token is computed by every rank of its attention group and kept by one of each DCP group. A rank
attends with all heads of its DCP group to the latents it holds, and `combine` gives it back its own heads over all of
them. Under ag_rs queries are cut by attn_tp and gathered; under a2a the group keeps a copy of q_b_proj and w_kc of all
its heads, which needs no gather.
"""

from functools import partial

from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from layouts.cache.attend import attend_shared, over_pages, over_rows
from layouts.cache.batch import Batch
from layouts.kernels import PLAIN
from layouts.mesh import Axes
from layouts.mla.attend import attend_pages
from layouts.mla.reference import Weights, attend_latents, output, project
from layouts.mla.shape import MLA
from layouts.paged import RUN
from layouts.rotary import Rotation


def weight_shapes(mla: MLA) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of one layer, whole; the index's own are in `layouts.dsa`."""
    hidden, width = mla.hidden, mla.heads * (mla.nope + mla.rope)
    low_rank = {
        "fused_qkv_a_proj": (mla.q_lora + mla.kv_values, hidden),
        "q_a_norm": (mla.q_lora,),
        "q_b_proj": (width, mla.q_lora),
    }
    return {
        **(low_rank if mla.q_lora else {"kv_a_proj": (mla.kv_values, hidden), "q_proj": (width, hidden)}),
        "kv_a_norm": (mla.kv_lora,),
        "w_kc": (mla.heads, mla.kv_lora, mla.nope),
        "w_vc": (mla.heads, mla.v, mla.kv_lora),
        **({"gate_proj": (mla.heads * mla.v, hidden)} if mla.output_gate else {}),
        "o_proj": (hidden, mla.heads * mla.v),
    }


def weight_specs(mla: MLA, axes: Axes, backend: str) -> dict[str, PartitionSpec]:
    """How whole weights are cut. The pool is each rank's own: `axes.spec(("attn_dp", "attn_tp"), None)`."""
    query = "attn_tp" if backend == "ag_rs" else "dcp_groups"
    whole, vector, by_query = axes.spec(None, None), axes.spec(None), axes.spec(query, None)
    low_rank = {"fused_qkv_a_proj": whole, "q_a_norm": vector, "q_b_proj": by_query}
    return {
        **(low_rank if mla.q_lora else {"kv_a_proj": whole, "q_proj": by_query}),
        "kv_a_norm": vector,
        "w_kc": axes.spec(query, None, None),
        "w_vc": axes.spec("attn_tp", None, None),
        **({"gate_proj": axes.spec("attn_tp", None)} if mla.output_gate else {}),
        "o_proj": axes.spec(None, "attn_tp"),
    }


def decode(
    mla: MLA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    pool: Float[Array, "pool_rows kv_values"],
    batch: Batch,
    axes: Axes,
    *,
    backend: str,
    scale: float,
    eps: float,
    rotation: Rotation | None = None,
    form: str = PLAIN,
    run: int = RUN,
) -> tuple[Float[Array, "requests*verify hidden"], Float[Array, "pool_rows kv_values"]]:
    """This rank's partial sum over heads, which a psum over attn_tp makes whole, and its pool.

    `hidden` are all rows of the attention group, on each of its ranks, in request order; `batch` its addresses.
    `form` of the attention (`layouts.mla.attend.FORMS`); one that is not plain finds latents in pages, which are
    multiples of `run` rows.
    """
    query, latent = project(mla, weights, hidden, rotation, eps)
    if form == PLAIN:
        attend = over_rows(partial(attend_latents, mla, scale))
    else:
        attend = over_pages(partial(attend_pages, scale=scale, latent=mla.kv_lora, form=form, run=run), run)
    attended, pool = attend_shared(attend, query, latent, pool, batch, axes, backend, gather=backend == "ag_rs")
    return output(mla, weights, hidden, attended), pool
