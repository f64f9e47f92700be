"""The value of every named quantity of `symbols.py`, for a layout under a load, in either arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from hw.arithmetic import Arithmetic
from layouts.cut import DEGREES, Cut, Scalar
from layouts.load import Load
from layouts.serving.graphs import graph_batch

Values = dict[str, Scalar]

_KERNEL_ROWS = 128  # rows of one tile of the split-KV decode kernel (its M128 two-CTA path)
_MOST_SPLITS = 32
_SPLIT_TOKENS = 256  # of 128 and 256 the one that fits the public tables better


@dataclass(frozen=True)
class Traits:
    """The few numbers of a model on which quantities depend; 0 or 1 where the model lacks the mechanism. `group`: query
    heads of a KV head, `key`: values of its keys."""

    heads: int
    kv_heads: int
    experts: int
    topk: int
    index_topk: int
    window: int
    draft_rows: int
    draft_window: int
    group: int = 1
    key: int = 1


def quantities(ar: Arithmetic, cut: Cut, load: Load, traits: Traits, sms: ArrayLike) -> Values:
    """Every quantity that does not depend on the memory budget. All are strictly positive where they divide."""
    values: Values = {name: jnp.asarray(getattr(cut, name), dtype=float) for name in DEGREES}
    values["tp"] = cut.tp
    several = above_one({**values, "verify": jnp.asarray(load.verify, dtype=float)})
    values["sharded_draft"] = cut.sharded_draft  # a share: it may be zero
    values |= _rows(ar, cut, load)
    values |= _cuts(ar, cut, traits, several)
    values |= _experts(ar, cut, load, traits, values)
    values |= _start_up(cut, several, values)
    values |= _tokens(ar, cut, load, traits, values["requests"])
    values |= _prefix_tokens(ar, load, traits)
    values |= _grid(ar, values, traits, jnp.asarray(sms, dtype=float))
    values["draft_verify"] = jnp.asarray(float(max(traits.draft_rows, 1)))
    values["draft_rows"] = values["batch"] * values["draft_verify"]
    values["vocab_groups"] = ar.maximum(1.0, cut.vocab_tp / cut.attn_tp)
    values["vocab_rows"] = values["rows"] * values["vocab_groups"]
    # a prompt needs the logits of its last token only
    values["logit_rows"] = values["vocab_groups"] * (values["requests"] if load.prefill else values["rows"])
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
        chunk = _group_chunk(cut, load)
        rows = chunk / cut.attn_cp
        # a chunk holds part of one prompt, or several prompts
        batch = requests = ar.ceil(chunk / jnp.asarray(load.context, dtype=float))
    else:
        requests = ar.ceil(jnp.asarray(load.concurrency, dtype=float) / (groups * cut.pp))
        batch = graph_batch(ar, requests, jnp.asarray(load.graph_sizes, dtype=float))
        rows = batch * verify
    # rows are scattered over the attention group in equal parts
    rows = cut.attn_tp * ar.ceil(rows / cut.attn_tp)
    captured = jnp.minimum(rows, jnp.asarray(load.graph_sizes, dtype=float)[-1] * verify)
    return {"requests": requests, "batch": batch, "rows": rows, "verify": verify, "graph_rows": captured}


def _group_chunk(cut: Cut, load: Load) -> Scalar:
    """Prompt tokens of one attention group in a step: the engines divide a chunk over the groups (case B23)."""
    return jnp.asarray(load.chunk, dtype=float) / cut.attn_dp


def _cuts(ar: Arithmetic, cut: Cut, traits: Traits, several: Values) -> Values:
    """Widths that follow from the degrees: a weight is sharded by rows iff its module runs TP1 (claim M17)."""
    exchanged, gathers_queries = cut.weight("dispatch=all_to_all"), cut.weight("dcp_backend=ag_rs")
    gathered = 1.0 - exchanged
    replicated = (1.0 - gathers_queries) * several["dcp"]
    whole_attention = 1.0 - several["attn_tp"]
    groups, copies = _above_one(cut.attn_dp * cut.attn_cp), several["moe_dp"]  # rows of their own, experts of their own
    summed, longest = groups * cut.weight("padding=sum_len"), groups * cut.weight("padding=max_len")
    expert_group = cut.tp / cut.moe_dp
    return {
        "dense_tp": cut.attn_tp,
        "shared_tp": expert_group**gathered,
        "gathers_attention": whole_attention,
        "gathers_moe": exchanged,
        "attention_shard": cut.weight_shard**whole_attention,
        "moe_shard": cut.weight_shard**exchanged,
        "draft_shard": cut.weight_shard ** (cut.sharded_draft * whole_attention),
        "kv_head_ranks": ar.minimum(float(max(traits.kv_heads, 1)), cut.attn_tp),
        "replicated_q": replicated,
        "by_all_to_all": exchanged,
        "by_max_len": gathered * (longest + (1.0 - groups) * copies),
        "by_sum_len": gathered * summed,
        "expert_group": expert_group,
        "copies_in_group": ar.maximum(1.0, cut.attn_tp / expert_group),
        "by_one_group": gathered * (1.0 - groups) * (1.0 - copies),
        "has_dcp": several["dcp"],
        "has_tp": several["tp"],
        "has_groups": several["attn_dp"],
        "by_ag_rs": gathers_queries,
        "by_a2a": cut.weight("dcp_backend=a2a"),
        "by_fi_a2a": cut.weight("dcp_backend=fi_a2a"),
        "query_tp": cut.attn_tp / cut.dcp**replicated,
    }


def _start_up(cut: Cut, several: Values, values: Mapping[str, Scalar]) -> Values:
    """What start-up depends on: communicators (`layouts.serving.groups` is the rule), kept states, the vocabulary."""
    inner = jnp.stack([cut.attn_tp, cut.attn_cp, cut.ep, cut.expert_tp])
    apart = jnp.maximum(cut.vocab_tp / cut.attn_tp, cut.attn_tp / cut.vocab_tp)
    # a group that spans all of tp is tp's own; a vocabulary group may be attention's own, too
    own = (_above_one(inner) * _above_one(cut.tp / inner)).sum()
    vocabulary = several["vocab_tp"] * _above_one(cut.tp / cut.vocab_tp) * _above_one(apart)
    # copies of the experts talk over the prefill CP group where that is the wider one
    copies = several["moe_dp"] * _above_one(cut.tp / cut.moe_dp) * jnp.where(cut.attn_cp <= cut.moe_dp, 1.0, 0.0)
    return {
        "process_groups": several["tp"] + several["dcp"] + several["pp"] + copies + own + vocabulary,
        "verify_copies": values["verify"] * several["verify"],
        "one_stage": 1.0 - several["pp"],
    }


def _experts(ar: Arithmetic, cut: Cut, load: Load, traits: Traits, values: Mapping[str, Scalar]) -> Values:
    """Rows that reach a rank's experts, and how many of its experts the step touches (uniform routing)."""
    rows, requests = values["rows"], values["requests"]
    exchanged, gathered = cut.weight("dispatch=all_to_all"), cut.weight("dispatch=all_gather")
    tokens = rows if load.prefill else requests * values["verify"]
    groups = cut.attn_dp * cut.attn_cp  # each with rows of its own
    # MAX_LEN pads every group to the longest; SUM_LEN carries the tokens that there are
    exact = jnp.asarray(load.concurrency, dtype=float) * values["verify"] / (cut.replicas * cut.pp)
    padded = groups * rows
    every = padded if load.prefill else padded + cut.weight("padding=sum_len") * (exact - padded)
    moe_rows = exchanged * rows / cut.attn_tp + gathered * every / cut.moe_dp
    share = traits.topk / max(traits.experts, 1)
    missed = jnp.exp(groups * tokens / cut.moe_dp * jnp.log1p(-share)) if share < 1 else 0.0
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
    read = requests * context / cut.dcp
    if load.prefill:
        # a chunk reads itself and what came before it: half of the rest of its prompt on average
        chunk = _group_chunk(cut, load)
        read = ar.maximum(chunk, (chunk + context) / 2.0)
    return {
        "context": context,
        "kv_tokens": read,
        "index_tokens": requests * context,
        "sparse_tokens": requests * kept / cut.dcp,
        "window_tokens": requests * seen / cut.dcp,
        "window_held": seen,
        "draft_tokens": requests * ar.minimum(context, float(traits.draft_window or 1)),
    }


def _prefix_tokens(ar: Arithmetic, load: Load, traits: Traits) -> Values:
    """Mean keys that a prefill row attends to: half of its prompt, or what a window or an index leaves of it."""
    half = jnp.asarray(load.context, dtype=float) / 2.0
    return {
        "prefix_tokens": half,
        "sparse_prefix_tokens": ar.minimum(half, float(traits.index_topk)) if traits.index_topk else half,
        "window_prefix_tokens": ar.minimum(half, float(traits.window)) if traits.window else half,
    }


def _grid(ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: Scalar) -> Values:
    """Splits of the split-KV decode kernel, and CTAs with work of its grid (2, requests x row tiles, splits).

    The captured batch sizes grid and splits; the CTAs of its padding find one token and are gone at once. No split
    takes less than `_SPLIT_TOKENS` tokens.
    """
    heads = traits.heads * values["dcp"] / values["attn_tp"]
    tiles = query_tiles(ar, heads, values["verify"])
    most = ar.ceil(values["context"] / values["dcp"] / _SPLIT_TOKENS)
    splits = ar.minimum(split_kv(ar, sms, values["batch"], tiles), most)
    return {"attention_splits": splits, "attention_ctas": 2.0 * values["requests"] * tiles * splits}


def above_one(degrees: Mapping[str, Scalar]) -> Values:
    """For each degree 0 at one and 1 from two on, in one array operation."""
    return dict(zip(degrees, _above_one(jnp.stack(list(degrees.values()))), strict=True))


def _above_one(degree: Scalar) -> Array:
    return jnp.clip(jnp.log2(degree), 0.0, 1.0)
