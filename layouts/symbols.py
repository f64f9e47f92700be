"""The named quantities that shapes, work and bytes are written over.

Degrees come from the layout, the rest from the layout and the load together (`quantities.py` computes each one, in
either arithmetic). A new quantity is one line here and one there.
"""

from typing import Final

from layouts.expression import Expr

MEANING: Final[dict[str, str]] = {
    # degrees: how many ways each logical axis is cut
    "replicas": "independent copies of the whole model",
    "pp": "pipeline stages of a replica",
    "tp": "ranks of one pipeline stage: attn_dp x attn_tp x attn_cp",
    "attn_dp": "attention data-parallel groups (requests)",
    "attn_tp": "ranks that share one attention group (heads)",
    "attn_cp": "prefill context-parallel width (tokens of a prompt)",
    "dcp": "decode context-parallel width (tokens of the KV cache), inside attn_tp",
    "ep": "expert-parallel width (experts)",
    "expert_tp": "ranks that share one expert (its intermediate width)",
    "moe_dp": "copies of the whole expert set",
    "weight_shard": "ranks over which the rows of a TP1 weight may be sharded",
    "vocab_tp": "ranks that share the vocabulary",
    "expert_group": "ranks that share one copy of the experts: tp / moe_dp",
    "copies_in_group": "copies of the experts among the ranks of one attention group: max(1, attn_tp / expert_group)",
    # how many ways a weight that may be sharded by rows is cut on this rank; 1 where it is not
    "attention_shard": "weight-shard width of the attention projections (1 unless attn_tp = 1)",
    "moe_shard": "weight-shard width of the shared expert and the latent projections",
    "draft_shard": "weight-shard width of the draft layers",
    "dense_tp": "ranks that share the dense MLP of an attention group",
    "shared_tp": "ranks that share the shared expert; 1 where each rank runs it on its own rows",
    "gathers_attention": "1 where attn_tp = 1, so that a weight shard gathers the attention weights, else 0",
    "gathers_moe": "1 where dispatch = all_to_all, so that it gathers shared-expert and latent weights, else 0",
    "query_tp": "ranks that the Q projections of a step are cut over: attn_tp, over dcp where Q is replicated",
    "kv_head_ranks": "ranks over which the KV heads are cut: min(kv heads, attn_tp)",
    "replicated_q": "1 where the DCP group keeps a copy of the Q projections of all its heads, else 0",
    # the load of one step
    "requests": "requests that run in one attention group (one micro-batch of it)",
    "batch": "requests that the captured graph of one attention group computes",
    "rows": "token rows of one attention group in a step: batch x verify width",
    "moe_rows": "token rows that one rank brings to the experts",
    "dense_rows": "token rows that one rank multiplies with the dense MLP",
    "shared_rows": "token rows that one rank multiplies with the shared expert",
    "expert_rows": "token-expert rows that one rank's experts compute",
    "experts_rank": "routed experts that one rank holds",
    "experts_touched": "routed experts of one rank that at least one token of the step chose",
    "vocab_rows": "token rows that one rank multiplies with its share of the vocabulary",
    "logit_rows": "those of them whose logits are wanted: all in decode, the last of each prompt in prefill",
    "vocab_groups": "attention groups that share one cut vocabulary: max(1, vocab_tp / attn_tp)",
    "draft_rows": "token rows of one attention group in a draft pass",
    "draft_verify": "rows of one request in a draft pass",
    "context": "mean tokens of context of a running request",
    "graph_rows": "token rows of the largest graph that the load makes an attention group capture",
    "verify": "tokens that a request verifies in a step",
    # attention kernels
    "kv_tokens": "KV tokens that one rank reads in a layer: requests x context / dcp; in prefill, chunk and prefix",
    "index_tokens": "index keys that one rank scores in a layer: requests x context (the index K is replicated)",
    "sparse_tokens": "KV tokens read where the indexer keeps only its top k",
    "window_held": "KV slots that a request keeps in a layer with a sliding window",
    "window_tokens": "KV tokens read inside a sliding window",
    "draft_tokens": "KV tokens that one rank reads in a layer of a draft with a bounded window",
    "prefix_tokens": "mean keys that a prefill row attends to (prefill only)",
    "sparse_prefix_tokens": "those of them that the indexer keeps",
    "window_prefix_tokens": "those of them inside a sliding window",
    "attention_splits": "parts of a request's KV tokens that the split-KV decode kernel merges",
    "attention_ctas": "CTAs of the split-KV decode kernel",
    # weights of the alternatives: 0 or 1 in a valid layout
    "by_all_to_all": "1 where tokens travel to the experts",
    "by_max_len": "1 where attention groups, or copies of the experts, gather rows, padded to the longest",
    "by_sum_len": "1 where attention groups sum their rows into one buffer",
    "by_one_group": "1 where a single attention group with one copy of the experts holds every row and only sums",
    "has_dcp": "1 where dcp > 1",
    "has_groups": "1 where several attention groups work in step",
    "has_tp": "1 where a pipeline stage has several ranks",
    "by_ag_rs": "1 where the DCP combine gathers Q and LSE and reduce-scatters the output",
    "by_a2a": "1 where it exchanges output and LSE in one packed all-to-all",
    "by_fi_a2a": "1 where that exchange is fused over multi-node NVLink",
    # pools
    "slots": "state slots of a rank: max running requests of its group + extra slots + 1",
    "verify_copies": "states kept for verification: the verify width, 0 without speculation",
    "process_groups": "communicators that a rank opens at start-up",
    "one_stage": "1 where embedding and head live on one rank (pp = 1), else 0",
    "global_kv_tokens": "KV slots of a whole attention group: those of a rank x dcp",
    "draft_window": "draft window slots kept for one state slot",
    "dispatch_tokens": "rows a rank may dispatch: the DeepEP buffer's bound",
}

# What only the JAX program depends on, whose shapes are fixed before a step and hold the most that may come, or only
# the prediction of its time.
PROGRAM_MEANING: Final[dict[str, str]] = {
    "choices": "most of a row's top-k experts that one rank can hold: min(top-k, experts / ep)",
    "experts_busiest": "experts_touched of the rank of ep that has most of them: the others wait for it",
    "table_tokens": "tokens that a rank's table has room for: batch x ceil(context / dcp)",
    "window_table_tokens": "those of them that some verified row sees in a sliding window",
    "index_table_tokens": "index keys that a rank's table has room for: batch x context",
    "chosen_tokens": "tokens that an index chooses for a row: min(top-k, context)",
    "handed_blocks": "earlier states of the stream that are handed on at all cuts between stages together",
    "attention_parts": "mean parts of a request's KV tokens that the program's attention merges; 0 where it cuts none",
    "attention_cut": "share of the requests whose KV tokens the program's attention cuts",
    "attention_blocks": "blocks of the program's attention kernel, those of all parts",
    "attention_padding": "query rows, and tiles of tokens, that these blocks compute over those that count",
    "inverse_levels": "joins that invert a triangle of the verify width: ceil(log2(verify))",
}


def _symbol(name: str) -> Expr:
    if name not in MEANING and name not in PROGRAM_MEANING:
        raise KeyError(f"unknown quantity {name!r}")
    return Expr.symbol(name)


REPLICAS, PP, TP = _symbol("replicas"), _symbol("pp"), _symbol("tp")
ATTN_DP, ATTN_TP, ATTN_CP, DCP = _symbol("attn_dp"), _symbol("attn_tp"), _symbol("attn_cp"), _symbol("dcp")
EXPERT_GROUP, COPIES_IN_GROUP = _symbol("expert_group"), _symbol("copies_in_group")
EP, EXPERT_TP, MOE_DP, VOCAB_TP = _symbol("ep"), _symbol("expert_tp"), _symbol("moe_dp"), _symbol("vocab_tp")
ATTENTION_SHARD, MOE_SHARD, DRAFT_SHARD = _symbol("attention_shard"), _symbol("moe_shard"), _symbol("draft_shard")
DENSE_TP, SHARED_TP, KV_HEAD_RANKS = _symbol("dense_tp"), _symbol("shared_tp"), _symbol("kv_head_ranks")
REPLICATED_Q = _symbol("replicated_q")
GATHERS_ATTENTION, GATHERS_MOE = _symbol("gathers_attention"), _symbol("gathers_moe")
WEIGHT_SHARD = _symbol("weight_shard")
QUERY_TP = _symbol("query_tp")
REQUESTS, BATCH, ROWS, MOE_ROWS = _symbol("requests"), _symbol("batch"), _symbol("rows"), _symbol("moe_rows")
EXPERTS_BUSIEST = _symbol("experts_busiest")
EXPERT_ROWS, EXPERTS_RANK, EXPERTS_TOUCHED = _symbol("expert_rows"), _symbol("experts_rank"), _symbol("experts_touched")
DENSE_ROWS, SHARED_ROWS = _symbol("dense_rows"), _symbol("shared_rows")
VOCAB_ROWS, DRAFT_ROWS, CONTEXT, VERIFY = (
    _symbol("vocab_rows"),
    _symbol("draft_rows"),
    _symbol("context"),
    _symbol("verify"),
)
KV_TOKENS, SPARSE_TOKENS, WINDOW_TOKENS = _symbol("kv_tokens"), _symbol("sparse_tokens"), _symbol("window_tokens")
INDEX_TOKENS, PREFIX_TOKENS = _symbol("index_tokens"), _symbol("prefix_tokens")
ATTENTION_CTAS, ATTENTION_SPLITS = _symbol("attention_ctas"), _symbol("attention_splits")
SPARSE_PREFIX_TOKENS, WINDOW_PREFIX_TOKENS = _symbol("sparse_prefix_tokens"), _symbol("window_prefix_tokens")
CHOICES, INVERSE_LEVELS, CHOSEN_TOKENS = _symbol("choices"), _symbol("inverse_levels"), _symbol("chosen_tokens")
TABLE_TOKENS, WINDOW_TABLE_TOKENS = _symbol("table_tokens"), _symbol("window_table_tokens")
INDEX_TABLE_TOKENS, HANDED_BLOCKS = _symbol("index_table_tokens"), _symbol("handed_blocks")
ATTENTION_PARTS, ATTENTION_BLOCKS = _symbol("attention_parts"), _symbol("attention_blocks")
ATTENTION_PADDING, ATTENTION_CUT = _symbol("attention_padding"), _symbol("attention_cut")
HAS_TP, HAS_GROUPS = _symbol("has_tp"), _symbol("has_groups")
WINDOW_HELD = _symbol("window_held")
GRAPH_ROWS = _symbol("graph_rows")
LOGIT_ROWS = _symbol("logit_rows")
BY_ALL_TO_ALL, BY_MAX_LEN = _symbol("by_all_to_all"), _symbol("by_max_len")
BY_SUM_LEN, BY_ONE_GROUP = _symbol("by_sum_len"), _symbol("by_one_group")
BY_AG_RS, BY_A2A, BY_FI_A2A = _symbol("by_ag_rs"), _symbol("by_a2a"), _symbol("by_fi_a2a")
DRAFT_TOKENS, DRAFT_VERIFY = _symbol("draft_tokens"), _symbol("draft_verify")
VERIFY_COPIES, PROCESS_GROUPS, ONE_STAGE = _symbol("verify_copies"), _symbol("process_groups"), _symbol("one_stage")
HAS_DCP, VOCAB_GROUPS = _symbol("has_dcp"), _symbol("vocab_groups")
SLOTS, GLOBAL_KV_TOKENS, DRAFT_WINDOW = _symbol("slots"), _symbol("global_kv_tokens"), _symbol("draft_window")
DISPATCH_TOKENS = _symbol("dispatch_tokens")


def layers_of(kind: int) -> Expr:
    """Layers of one kind on the rank that holds the heaviest pipeline stage."""
    return Expr.symbol(f"layers_{kind}")


def sharded_layers_of(kind: int) -> Expr:
    """Those of them whose TP1 weights are sharded by rows."""
    return Expr.symbol(f"sharded_{kind}")
