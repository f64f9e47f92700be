"""Prefill, prefill/decode deployments, and layouts of other models (articles 002 to 004)."""

import numpy as np

from experiments.seed_claims.answer import Answer, Topic, answer, holds
from explorer.evaluate import summary
from explorer.priced import priced
from explorer.request import Request, make_request
from hw.compat import x64
from hw.units import GIB, MIB
from hw.work import CollectiveKind, sent_bytes
from layouts.cut import cut_of
from layouts.mla import MLA
from layouts.models import load_model
from layouts.serving.disaggregation import (
    packs_in_rounds,
    page_shard_gain,
    pool_fits,
    served_tokens_a_gpu,
    split_layers,
)
from layouts.serving.owner import owner, row, slot_of

# Article 004, its configuration and its two acceptance runs.
POOL, PADDING_SLOTS = 110_464, 64
PREFIX, SUFFIX, OUTPUT = 73_728, 8_192, 600
RATE, GPUS, REQUESTS, PREFILL_SERVERS = 3.40, 40, 2072, 4
CONTEXT_RANKS, ATTENTION_RANKS, CHUNK, HIDDEN = 4, 2, 16_384, 6_144


def boundary(collectives: list[tuple[CollectiveKind, float, int]]) -> float:
    """Bytes that a rank sends, in units of S, one context rank's whole activations."""
    return sum(float(sent_bytes(kind, np.float64(payload), np.float64(size))) for kind, payload, size in collectives)


def before() -> float:
    """All-reduce over attention TP, all-gather over the context ranks."""
    gathered = float(CONTEXT_RANKS)
    return boundary(
        [(CollectiveKind.ALL_REDUCE, 1.0, ATTENTION_RANKS), (CollectiveKind.ALL_GATHER, gathered, CONTEXT_RANKS)]
    )


def after() -> float:
    """Reduce-scatter over attention TP, all-gather over all ranks, and the residual's all-gather."""
    return boundary(
        [
            (CollectiveKind.REDUCE_SCATTER, 1.0, ATTENTION_RANKS),
            (CollectiveKind.ALL_GATHER, float(CONTEXT_RANKS), CONTEXT_RANKS * ATTENTION_RANKS),
            (CollectiveKind.ALL_GATHER, 1.0, ATTENTION_RANKS),
        ]
    )


def input_sp_bytes() -> Answer:
    """G03: S of a 16K chunk in bf16, and both sums."""
    size = CHUNK // CONTEXT_RANKS * HIDDEN * 2 / MIB
    return answer(size, before() * size, after() * size)


def all_reduce_split() -> float:
    """G12: bytes of a reduce-scatter and an all-gather over those of the all-reduce that they replace."""
    split = [(CollectiveKind.REDUCE_SCATTER, 1.0, 8), (CollectiveKind.ALL_GATHER, 1.0, 8)]
    return boundary(split) / boundary([(CollectiveKind.ALL_REDUCE, 1.0, 8)])


def residency() -> Answer:
    """G06: which requests the prefill pool of article 004 holds together."""
    cases = (([PREFIX], [SUFFIX] * 4), ([PREFIX], [SUFFIX] * 5), ([], [PREFIX + SUFFIX] * 2))
    return answer(*("fits" if pool_fits(POOL, *case) else "does not" for case in cases))


def pool_gib(layers: int) -> float:
    """KV and index keys of a pool over some layers of GLM-5.2, GiB."""
    attention = next(la.attention for la in load_model("glm-5.2-nvfp4").layers if isinstance(la.attention, MLA))
    index = attention.indexer.key_bytes if attention.indexer is not None else 0
    return layers * (int(attention.kv_bytes("fp8").evaluate({})) + index) * (POOL + PADDING_SLOTS) / GIB


def glm_layers() -> int:
    """Layers of GLM-5.2 without its draft layer."""
    return len(load_model("glm-5.2-nvfp4").layers)


def layer_split() -> Answer:
    """G07: the pool of a rank under LayerSplit, and in full."""
    kept = split_layers(glm_layers(), CONTEXT_RANKS)
    return answer((pool_gib(min(kept)), pool_gib(max(kept))), pool_gib(glm_layers()))


def delivered_once() -> Answer:
    """G15: every token of P's page shards lands once, in the row that its DCP owner gives it."""
    slots = np.arange(5000)
    right = []
    for page, shards, ranks in ((64, 4, 2), (1, 3, 8), (16, 8, 8), (7, 5, 3)):
        source = slot_of(owner(slots, shards, page), row(slots, shards, page), shards, page)
        landed = owner(source, ranks).astype(np.int64) * slots.size + row(source, ranks)
        right += [np.array_equal(source, slots), np.unique(landed).size == slots.size]
    return holds(*right)


def bounded_pack() -> Answer:
    """M40: rounds exactly where rows times item lengths exceed the buffer."""
    items = (656, 132)
    exact = 1000 * sum(items)
    return holds(not packs_in_rounds(1000, items, exact), packs_in_rounds(1000, items, exact - 1))


def served() -> Answer:
    """G13: with cached tokens, as quoted; fresh ones beside it."""
    fresh = served_tokens_a_gpu(RATE, SUFFIX, OUTPUT, GPUS)
    return answer(served_tokens_a_gpu(RATE, PREFIX + SUFFIX, OUTPUT, GPUS), note=f"fresh ones alone {fresh:.0f}")


def _rate(request: Request, text: str) -> float:
    """Tokens a second of the whole instance."""
    layout = request.layout(text)
    result = priced(request, layout)
    with x64():
        return float(summary(cut_of(layout), request.case(), result.schedule, result.held).tokens_per_second)


def prefill_ratio(width: int) -> Answer:
    """P01, P02: prompt tokens a second, attention TP1 over a wider one, as many tokens a card; fused MoE.

    The article does not state its hardware; eight H200 are taken.
    """
    rates = []
    for attn_tp in (1, width):
        asked = make_request("kimi-k2.5", "h200", 8, phase="prefill", context=8192, chunk=8192 * attn_tp)
        text = f"attn_dp={8 // attn_tp},ep=8,dispatch=all_gather"
        rates.append(_rate(asked, text))
    return answer(rates[0] / rates[1], note="on 8 x H200, which the article does not state")


def scatter_before_experts() -> Answer:
    """M35: dispatched experts need a reduce-scatter iff attention TP > 1; fused ones an all-reduce at every TP."""
    asked = make_request("kimi-k2.5", "h200", 8, phase="prefill", context=8192)

    def runs(text: str, *ops: str) -> bool:
        result = priced(asked, asked.layout(text))
        return any(float(s) > 0 for op, s in zip(result.table.names, result.parts.seconds, strict=True) if op in ops)

    plain = [runs(f"attn_dp={dp},ep=8", "attention_reduce_scatter") == (dp < 8) for dp in (8, 2, 1)]
    fused = [f"attn_dp={dp},ep=8,dispatch=all_gather{',padding=sum_len' if dp > 1 else ''}" for dp in (8, 2, 1)]
    return holds(*plain, *(runs(text, "dp_sum_gather", "attention_all_reduce") for text in fused))


def small_deployment() -> Answer:
    """M32: one host at low load is slower with attention DP."""
    slower = []
    for concurrency in (1, 4, 8):
        asked = make_request("deepseek-v3", "h200", 8, context=4096, concurrency=concurrency)
        split, whole = (_rate(asked, f"attn_dp={dp},ep=8,dispatch=all_gather") for dp in (8, 1))
        slower.append(split < whole)
    return holds(*slower, note="DeepSeek-V3 on 8 x H200, 1 to 8 requests of 4k")


CLAIMS: Topic = {
    "P01": lambda: prefill_ratio(4),
    "P02": lambda: prefill_ratio(8),
    "G01": lambda: answer(before(), after()),
    "G02": lambda: answer((after() / before() - 1) * 100),
    "G03": input_sp_bytes,
    "G06": residency,
    "G07": layer_split,
    "G08": lambda: answer(glm_layers() / max(split_layers(glm_layers(), CONTEXT_RANKS))),
    "G12": lambda: answer(all_reduce_split()),
    "G13": served,
    "G14": lambda: answer(
        page_shard_gain(glm_layers(), CONTEXT_RANKS, 2), note="scratch of two layers, one prefetched"
    ),
    "G15": delivered_once,
    "M32": small_deployment,
    "M35": scatter_before_experts,
    "M38": lambda: answer(pool_gib(glm_layers()) - pool_gib(max(split_layers(glm_layers(), CONTEXT_RANKS)))),
    "M39": lambda: answer(REQUESTS / PREFILL_SERVERS),
    "M40": bounded_pack,
}
