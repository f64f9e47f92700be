"""The value of every named quantity of `symbols.py`, for a layout under a load, in either arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from hw.arithmetic import Arithmetic
from layouts.cut import DEGREES, Cut
from layouts.load import Load
from layouts.serving.graphs import graph_batch

Scalar = Float[Array, ""]
Values = dict[str, Scalar]

_KERNEL_ROWS = 128  # rows of one tile of the split-KV decode kernel (its M128 two-CTA path)
_MOST_SPLITS = 32


@dataclass(frozen=True)
class Traits:
    """The few numbers of a model on which quantities depend; 0 or 1 where the model lacks the mechanism."""

    heads: int
    kv_heads: int
    experts: int
    topk: int
    index_topk: int
    window: int
    draft_rows: int
    draft_window: int


def quantities(ar: Arithmetic, cut: Cut, load: Load, traits: Traits, sms: ArrayLike) -> Values:
    """Every quantity that does not depend on the memory budget. All are strictly positive where they divide."""
    values: Values = {name: jnp.asarray(getattr(cut, name), dtype=float) for name in DEGREES}
    values["tp"] = cut.tp
    values["sharded_draft"] = cut.sharded_draft
    values |= _rows(ar, cut, load)
    values |= _cuts(ar, cut, traits)
    values |= _experts(ar, cut, load, traits, values)
    values |= _start_up(cut, load)
    values |= _tokens(ar, cut, load, traits, values["requests"])
    values["attention_ctas"] = _ctas(ar, values, traits, jnp.asarray(sms, dtype=float))
    values["draft_verify"] = jnp.asarray(float(max(traits.draft_rows, 1)))
    values["draft_rows"] = values["batch"] * values["draft_verify"]
    values["vocab_groups"] = ar.maximum(1.0, cut.vocab_tp / cut.attn_tp)
    values["vocab_rows"] = values["rows"] * values["vocab_groups"]
    return values


def split_kv(ar: Arithmetic, sms: ArrayLike, batch: ArrayLike, tiles: ArrayLike) -> Scalar:
    """KV splits by the published rule: SMs // B // (2 x tiles), at least 1 and at most 32 (serving rules, M04)."""
    per_request = ar.floor(jnp.asarray(sms, dtype=float) / jnp.asarray(batch, dtype=float))
    return ar.minimum(ar.maximum(1.0, ar.floor(per_request / (2.0 * jnp.asarray(tiles, dtype=float)))), _MOST_SPLITS)


def query_tiles(ar: Arithmetic, heads: ArrayLike, verify: ArrayLike) -> Scalar:
    """Row tiles of one request: a tile takes whole queries, as many as fit in 128 rows."""
    heads, verify = jnp.asarray(heads, dtype=float), jnp.asarray(verify, dtype=float)
    return ar.ceil(verify / ar.maximum(1.0, ar.floor(_KERNEL_ROWS / heads)))


def _rows(ar: Arithmetic, cut: Cut, load: Load) -> Values:
    """Requests and token rows of one attention group, padded as the engines pad them."""
    groups = cut.replicas * cut.attn_dp
    verify = jnp.asarray(load.verify, dtype=float)
    if load.prefill:
        rows = jnp.asarray(load.chunk, dtype=float) / cut.attn_cp
        requests = jnp.asarray(load.chunk, dtype=float) / jnp.asarray(load.context, dtype=float)
        batch = requests
    else:
        requests = ar.ceil(jnp.asarray(load.concurrency, dtype=float) / (groups * cut.pp))
        batch = graph_batch(ar, requests, jnp.asarray(load.graph_sizes, dtype=float))
        rows = batch * verify
    # rows are scattered over the attention group in equal parts
    rows = cut.attn_tp * ar.ceil(rows / cut.attn_tp)
    return {"requests": requests, "batch": batch, "rows": rows, "verify": verify}


def _cuts(ar: Arithmetic, cut: Cut, traits: Traits) -> Values:
    """Widths that follow from the degrees: a weight is sharded by rows iff its module runs TP1 (claim M17)."""
    exchanged = cut.weight("dispatch=all_to_all")
    replicated = (1.0 - cut.weight("dcp_backend=ag_rs")) * _above_one(cut.dcp)
    whole_attention = 1.0 - _above_one(cut.attn_tp)
    gathered, several = 1.0 - exchanged, _above_one(cut.attn_dp)
    return {
        "dense_tp": cut.attn_tp,
        "shared_tp": cut.tp ** (1.0 - exchanged),
        "gathers_attention": whole_attention,
        "gathers_moe": exchanged,
        "attention_shard": cut.weight_shard**whole_attention,
        "moe_shard": cut.weight_shard**exchanged,
        "draft_shard": cut.weight_shard ** (cut.sharded_draft * whole_attention),
        "kv_head_ranks": ar.minimum(float(max(traits.kv_heads, 1)), cut.attn_tp),
        "replicated_q": replicated,
        "by_all_to_all": exchanged,
        "by_max_len": gathered * several * cut.weight("padding=max_len"),
        "by_sum_len": gathered * several * cut.weight("padding=sum_len"),
        "by_one_group": gathered * (1.0 - several),
        "has_dcp": _above_one(cut.dcp),
        "by_ag_rs": cut.weight("dcp_backend=ag_rs"),
        "by_a2a": cut.weight("dcp_backend=a2a"),
        "by_fi_a2a": cut.weight("dcp_backend=fi_a2a"),
        "query_tp": cut.attn_tp / cut.dcp**replicated,
    }


def _start_up(cut: Cut, load: Load) -> Values:
    """What start-up depends on: communicators (`layouts.serving.groups` is the rule), kept states, the vocabulary."""
    tp, attn_tp, vocab_tp = cut.tp, cut.attn_tp, cut.vocab_tp
    inner = [attn_tp, cut.attn_cp, cut.ep, cut.expert_tp]
    groups = _above_one(tp) + _above_one(cut.dcp) + _above_one(cut.pp) + _above_one(cut.moe_dp)
    groups += sum(_above_one(width) * _above_one(tp / width) for width in inner)
    apart = jnp.maximum(vocab_tp / attn_tp, attn_tp / vocab_tp)
    groups += _above_one(vocab_tp) * _above_one(tp / vocab_tp) * _above_one(apart)
    verify = jnp.asarray(load.verify, dtype=float)
    return {
        "process_groups": groups,
        "verify_copies": verify * _above_one(verify),
        "one_stage": 1.0 - _above_one(cut.pp),
    }


def _experts(ar: Arithmetic, cut: Cut, load: Load, traits: Traits, values: Mapping[str, Scalar]) -> Values:
    """Rows that reach a rank's experts, and how many of its experts the step touches (uniform routing)."""
    rows, requests = values["rows"], values["requests"]
    exchanged, gathered = cut.weight("dispatch=all_to_all"), cut.weight("dispatch=all_gather")
    tokens = rows if load.prefill else requests * values["verify"]
    # MAX_LEN pads every group to the longest; SUM_LEN carries the tokens that there are
    exact = jnp.asarray(load.concurrency, dtype=float) * values["verify"] / (cut.replicas * cut.pp)
    padded = cut.attn_dp * rows
    every = padded if load.prefill else padded + cut.weight("padding=sum_len") * (exact - padded)
    moe_rows = exchanged * rows / cut.attn_tp + gathered * every / cut.moe_dp
    share = traits.topk / max(traits.experts, 1)
    missed = jnp.exp(cut.attn_dp * tokens / cut.moe_dp * jnp.log1p(-share)) if share < 1 else 0.0
    experts_rank = max(traits.experts, 1) / cut.ep
    return {
        "moe_rows": moe_rows,
        "dense_rows": rows,
        "shared_rows": moe_rows,
        "expert_rows": moe_rows * traits.topk * (exchanged + gathered / cut.ep),
        "experts_rank": experts_rank,
        "experts_touched": experts_rank * (1.0 - missed),
    }


def _tokens(ar: Arithmetic, cut: Cut, load: Load, traits: Traits, requests: Scalar) -> Values:
    """KV tokens of a layer on one rank: the mean over the DCP group, whose longest member holds at most one more."""
    context = jnp.asarray(load.context, dtype=float)
    kept = ar.minimum(context, float(traits.index_topk)) if traits.index_topk else context
    seen = ar.minimum(context, float(traits.window)) if traits.window else context
    # a prompt computed in chunks attends to half of itself on average
    return {
        "context": context,
        "kv_tokens": requests * context / cut.dcp,
        "index_tokens": requests * context,
        "sparse_tokens": requests * kept / cut.dcp,
        "window_tokens": requests * seen / cut.dcp,
        "draft_tokens": requests * ar.minimum(context, float(traits.draft_window or 1)),
        "prefix_tokens": context / 2.0,
    }


def _ctas(ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: Scalar) -> Scalar:
    """Grid of the split-KV decode kernel: (2, requests x row tiles, splits), sized for the captured batch."""
    heads = traits.heads * values["dcp"] / values["attn_tp"]
    tiles = query_tiles(ar, heads, values["verify"])
    return 2.0 * values["requests"] * tiles * split_kv(ar, sms, values["batch"], tiles)


def _above_one(degree: Scalar) -> Scalar:
    """0 at a degree of one, 1 from two on."""
    return jnp.clip(jnp.log2(degree), 0.0, 1.0)
