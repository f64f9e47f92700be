"""The quantities of a layout once more, in plain Python integers and fractions: the oracle of the byte tests.

Written from the engines' rules, not from `layouts.quantities`, with branches where that one has formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from layouts.csa import CSA
from layouts.gqa import GQA
from layouts.layout import Layout
from layouts.mla import MLA
from layouts.models import Model
from layouts.moe import MoE
from layouts.serving.groups import Degrees, process_groups

Number = int | Fraction


@dataclass(frozen=True)
class Case:
    """A load. `sizes` are the captured batches, ascending."""

    context: int
    concurrency: int
    verify: int
    sizes: tuple[int, ...]
    sms: int
    chunk: int = 8192
    prefill: bool = False


def ceil(a: Number, b: Number = 1) -> int:
    return -int(-Fraction(a) // Fraction(b))


def values(model: Model, layout: Layout, case: Case) -> dict[str, Number]:
    """Every quantity that the ops and the ledger's lines of a model may name, budget ones left out."""
    degrees = {name: value for name, value in layout.as_dict().items() if isinstance(value, int)}
    load = _load(layout, case)
    return {
        **degrees,
        "tp": layout.tp,
        **load,
        **_widths(model, layout),
        **_alternatives(layout),
        **_experts(model, layout, case, load),
        **_tokens(model, layout, case, load),
        **_draft(model, case, load),
        **_vocabulary(layout, case, load),
        **_layers(model, layout),
        "context": case.context,
        "verify_copies": case.verify if case.verify > 1 else 0,
        "process_groups": _communicators(layout),
        "one_stage": int(layout.pp == 1),
    }


def captured(requests: int, sizes: tuple[int, ...]) -> int:
    """The smallest captured batch that holds the requests; beyond the largest, they run as they are."""
    return min((s for s in sizes if s >= requests), default=requests)


def _load(layout: Layout, case: Case) -> dict[str, Number]:
    if case.prefill:
        requests = batch = ceil(case.chunk, case.context * layout.attn_dp)
        rows: Number = Fraction(case.chunk, layout.attn_dp * layout.attn_cp)
    else:
        requests = ceil(case.concurrency, layout.replicas * layout.attn_dp * layout.pp)
        batch = captured(requests, case.sizes)
        rows = batch * case.verify
    rows = ceil(rows, layout.attn_tp) * layout.attn_tp
    # beyond the largest captured batch nothing more is captured
    graphs = min(rows, case.sizes[-1] * case.verify)
    return {"requests": requests, "batch": batch, "rows": rows, "verify": case.verify, "graph_rows": graphs}


def _widths(model: Model, layout: Layout) -> dict[str, Number]:
    """M17: a weight is sharded by rows iff its module runs TP1 on the card."""
    whole_attention, whole_moe = layout.attn_tp == 1, layout.dispatch == "all_to_all"
    copied_q = layout.dcp > 1 and layout.dcp_backend != "ag_rs"
    sharded_draft = layout.weight_shard_layers.any and layout.weight_shard_layers.draft
    return {
        "dense_tp": layout.attn_tp,
        "shared_tp": 1 if whole_moe else layout.tp // layout.moe_dp,
        "gathers_attention": int(whole_attention),
        "gathers_moe": int(whole_moe),
        "attention_shard": layout.weight_shard if whole_attention else 1,
        "moe_shard": layout.weight_shard if whole_moe else 1,
        "draft_shard": layout.weight_shard if whole_attention and sharded_draft else 1,
        "sharded_draft": int(sharded_draft),
        "kv_head_ranks": min(max(model.kv_heads, 1), layout.attn_tp),
        "replicated_q": int(copied_q),
        "query_tp": layout.attn_tp // layout.dcp if copied_q else layout.attn_tp,
    }


def _alternatives(layout: Layout) -> dict[str, Number]:
    gathered, several = layout.dispatch == "all_gather", layout.attn_dp * layout.attn_cp > 1
    summing = several and layout.padding == "sum_len"
    return {
        "by_all_to_all": int(not gathered),
        "by_max_len": int(gathered and (several or layout.moe_dp > 1) and not summing),
        "by_sum_len": int(gathered and summing),
        "by_one_group": int(gathered and not several and layout.moe_dp == 1),
        "expert_group": layout.ep * layout.expert_tp,
        "copies_in_group": max(1, layout.attn_tp // (layout.ep * layout.expert_tp)),
        "has_dcp": int(layout.dcp > 1),
        "has_tp": int(layout.tp > 1),
        "has_groups": int(layout.attn_dp > 1),
        **{f"by_{name}": int(layout.dcp_backend == name) for name in ("ag_rs", "a2a", "fi_a2a")},
    }


def _experts(model: Model, layout: Layout, case: Case, load: Mapping[str, Number]) -> dict[str, Number]:
    moe = next((la.ffn for la in model.layers if isinstance(la.ffn, MoE)), None)
    experts, topk = (moe.experts, moe.topk) if moe else (1, 0)
    groups = layout.attn_dp * layout.attn_cp
    if layout.dispatch == "all_to_all":
        rows: Number = Fraction(load["rows"], layout.attn_tp)
        expert_rows = rows * topk
    else:
        every: Number = groups * load["rows"]
        if layout.padding == "sum_len" and not case.prefill:
            every = Fraction(case.concurrency * case.verify, layout.replicas * layout.pp)
        rows = Fraction(every, layout.moe_dp)
        expert_rows = rows * topk / layout.ep
    tokens = groups * (load["rows"] if case.prefill else load["requests"] * case.verify) / layout.moe_dp
    held = Fraction(experts, layout.ep)
    untouched = Fraction((1 - topk / experts) ** float(tokens)) if topk < experts else 0
    return {
        "moe_rows": rows,
        "shared_rows": rows,
        "dense_rows": load["rows"],
        "expert_rows": expert_rows,
        "experts_rank": held,
        "experts_touched": held * (1 - untouched),
    }


def _tokens(model: Model, layout: Layout, case: Case, load: Mapping[str, Number]) -> dict[str, Number]:
    attentions = [la.attention for la in model.layers]
    latent = [a for a in attentions if isinstance(a, MLA)]
    topk = next((a.indexer.topk for a in latent if a.indexer), case.context)
    topk = max((a.ratio * a.topk for a in attentions if isinstance(a, CSA)), default=0) or topk
    window = max((a.window for a in attentions if isinstance(a, GQA | CSA)), default=0) or case.context
    mean = Fraction(case.context, 2)
    local = Fraction(load["requests"], layout.dcp)
    chunk = Fraction(case.chunk, layout.attn_dp)
    read = max(chunk, (chunk + Fraction(case.context)) / 2) if case.prefill else local * case.context
    return {
        "kv_tokens": read,
        "index_tokens": load["requests"] * case.context,
        "sparse_tokens": local * min(case.context, topk),
        "window_tokens": local * min(case.context, window),
        "window_held": min(case.context, window),
        "prefix_tokens": mean,
        "sparse_prefix_tokens": min(mean, topk),
        "window_prefix_tokens": min(mean, window),
        **_grid(latent[0].heads if latent else 1, layout, case, load),
    }


def _grid(heads: int, layout: Layout, case: Case, load: Mapping[str, Number]) -> dict[str, Number]:
    """Grid (2, requests x row tiles, split): whole queries in tiles of 128 rows, at least 256 tokens in a split."""
    queries = max(1, Fraction(128 * layout.attn_tp, heads * layout.dcp).__floor__())
    tiles = ceil(case.verify, queries)
    most = ceil(case.context, layout.dcp * 256)
    split = min(max(1, case.sms // load["batch"] // (2 * tiles)), 32, most)
    return {"attention_splits": split, "attention_ctas": 2 * load["requests"] * tiles * split}


def _draft(model: Model, case: Case, load: Mapping[str, Number]) -> dict[str, Number]:
    """A block draft writes its block in one pass and looks back over a window; other drafts go token by token."""
    block = window = 1
    if model.draft is not None and model.draft.kv == "window":
        block = model.draft.block
        (window,) = {la.attention.window for la in model.draft.layers if isinstance(la.attention, GQA)}
    return {
        "draft_verify": block,
        "draft_rows": load["batch"] * block,
        "draft_tokens": load["requests"] * min(case.context, window),
    }


def _vocabulary(layout: Layout, case: Case, load: Mapping[str, Number]) -> dict[str, Number]:
    groups = max(1, layout.vocab_tp // layout.attn_tp)
    wanted = load["requests"] if case.prefill else load["rows"]
    return {"vocab_groups": groups, "vocab_rows": groups * load["rows"], "logit_rows": groups * wanted}


def _communicators(layout: Layout) -> int:
    degrees = Degrees(
        layout.tp, layout.pp, layout.attn_dp, layout.attn_cp, layout.dcp, layout.ep, layout.moe_dp, layout.vocab_tp
    )
    return len(process_groups(degrees))


def stage_layers(layers: int, rank: int, stages: int) -> range:
    """Layers of one pipeline stage. SGLang: the remainder goes to the last stages, one layer each."""
    sizes = [layers // stages + (stage >= stages - layers % stages) for stage in range(stages)]
    return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def _layers(model: Model, layout: Layout) -> dict[str, Number]:
    """Of the heaviest stage by parameters, the last among equals."""
    stages = [stage_layers(len(model.layers), rank, layout.pp) for rank in range(layout.pp)]
    held = max(stages, key=lambda s: (sum(model.layers[i].parameters for i in s), s.start))
    sharded = layout.weight_shard_layers
    found: dict[str, Number] = {}
    for kind in range(len(model.kinds)):
        mine = [i for i in held if model.kind_of_layer[i] == kind]
        found[f"layers_{kind}"] = len(mine)
        found[f"sharded_{kind}"] = len([i for i in mine if sharded.any and sharded.first <= i <= sharded.last])
    return found
