"""Rules of the engines: degrees, groups, graphs, control synchronisation, decode context parallelism."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np

from experiments.seed_claims.answer import Answer, Topic, answer, holds, named
from experiments.seed_claims.article import BOTH, DP2, DP16, FULL, price, step
from hw.units import GB
from layouts.combine.reference import merge, partial_attention
from layouts.combine.work import combine
from layouts.gqa import GQA
from layouts.layout import Layout
from layouts.models import load_model
from layouts.serving.control import SHARED_INTEGERS, ForwardMode, Vote, agree_without_exchange
from layouts.serving.errors import EngineRuleError
from layouts.serving.extend import attended_tokens, gathered_order, received_tokens
from layouts.serving.groups import Degrees, decode_replica, fake_dp_gpus, process_groups
from layouts.serving.owner import kv_copies, owner, slot_of

LONG = 128 * 1024  # tokens of the request of D01


def groups_of(layout: Layout) -> str:
    """Communicators of a rank by size, largest first."""
    degrees = Degrees(layout.tp, layout.pp, layout.attn_dp, layout.attn_cp, layout.dcp, layout.ep, layout.moe_dp,
                      layout.vocab_tp)  # fmt: skip
    sizes = Counter(group.size for group in process_groups(degrees))
    return " + ".join(f"{count} x {size}" for size, count in sorted(sizes.items(), reverse=True))


def headroom() -> Answer:
    """M25: extra slots over running requests, in whole percent as printed."""
    return answer(*(float(round(100 * d.extra_slots / float(step(d, FULL).memory.wanted))) for d in BOTH))


def request_bytes(copies: int) -> float:
    """GB of KV of one request of 128K tokens of DeepSeek-V3 in bf16 over all cards of an attention group."""
    model = load_model("deepseek-v3", None, "kv=bf16")
    kind = model.precision["kv"].name
    a_token = sum(int(layer.attention.kv_bytes(kind).evaluate({})) for layer in model.layers)
    return a_token * LONG * copies / GB


def copies() -> Answer:
    """D03: TP8 DP8, TP8 DP2, TP64 DP4 DCP8."""
    asked = (Degrees(8, attn_dp=8), Degrees(8, attn_dp=2), Degrees(64, attn_dp=4, dcp=8))
    return answer(*(float(kv_copies(d.attn_tp, d.dcp)) for d in asked))


def merge_error() -> Answer:
    """D05: largest difference to float64 attention over splits with empty ranks, all-empty rows included."""
    random = np.random.default_rng(0)
    query, keys, values = (random.normal(size=(n, 2, 16)) for n in (3, 37, 37))
    scores = np.einsum("rhk,thk->rht", query, keys) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    full = np.einsum("rht,thw->rhw", weights / weights.sum(-1, keepdims=True), values)
    q, k, v = (jnp.asarray(x, jnp.float32) for x in (query, keys, values))
    worst = 0.0
    for owners in (np.arange(37) % 4, np.minimum(np.arange(37), 1), np.full(37, 2), np.full(37, 9)):
        parts = [partial_attention(q, k, v, jnp.asarray(owners == rank), 0.25) for rank in range(4)]
        merged, _ = merge(jnp.stack([o for o, _ in parts]), jnp.stack([lse for _, lse in parts]))
        expected = full if owners.min() < 4 else np.zeros_like(full)
        worst = max(worst, float(np.abs(np.asarray(merged) - expected).max()))
    return answer(worst if np.isfinite(worst) else 1e9)


def backend_calls() -> Answer:
    """D07: exchanges of one layer, ag_rs over a2a, both without the Q gather that replicated Q saves."""

    def calls(backend: str, copied_query: bool, with_gather: bool) -> int:
        values = {"has_dcp": 1, "by_ag_rs": 0, "by_a2a": 0, "by_fi_a2a": 0, f"by_{backend}": 1}
        ops = [op for op in combine(96, 576, 512, copied_query) if op.collective is not None]
        return sum(int(op.share.evaluate(values)) for op in ops if with_gather or op.name != "q_all_gather")

    copied = [calls(backend, True, False) for backend in ("ag_rs", "a2a")]
    plain = [calls(backend, False, True) for backend in ("ag_rs", "a2a")]
    return answer(copied[0] / copied[1], note=f"without replicated Q {plain[0]} against {plain[1]}")


def gpus() -> Answer:
    """M28: GPUs of a deployment with attention DP."""
    asked = [Degrees(tp, pp, attn_dp=dp) for tp, pp, dp in product((8, 16), (1, 2), (2, 4))]
    return named(
        {"tp x pp": [d.tp * d.pp for d in asked], "dp x tp x pp": [d.attn_dp * d.tp * d.pp for d in asked]},
        [d.gpus for d in asked],
    )


def dcp_share() -> Answer:
    """M29: KV tokens that a card reads under DCP c over those without."""
    widths = (1, 2, 4, 8)
    read = [price(DP2.request, replace(DP2.layout, dcp=c), FULL).values["kv_tokens"] for c in widths]
    shares = [float(r / read[0]) for r in read]
    return named({"1": [1.0] * 4, "1/c": [1 / c for c in widths], "c": [float(c) for c in widths]}, shares)


def extend() -> Answer:
    """M30: the gathered prefix is complete and in order on every card, and what it receives grows with the context."""
    ranks = DP2.layout.dcp
    ordered = []
    for prefix in (1, 1000, 4097):
        padded = -(-prefix // ranks)
        shards = np.full((ranks, padded), -1)
        for rank in range(ranks):
            held = slot_of(rank, np.arange(padded), ranks)
            shards[rank] = np.where(held < prefix, held, -1)
        ordered.append(np.array_equal(shards.ravel()[gathered_order(prefix, ranks)], np.arange(prefix)))
    everywhere = attended_tokens(4097, ranks) == (4097,) * ranks
    grows = received_tokens(200_000, 3, ranks) == 2 * received_tokens(100_000, 3, ranks) > 0
    return holds(*ordered, everywhere, grows)


def few_kv_heads() -> Answer:
    """P03: attn_dp = 8 / KV heads copies no key, so a card holds what it holds under attn_dp 8; a latent is copied."""
    equal = []
    for heads in (2, 4, 8):
        gqa = GQA(4096, 32, heads, 128, window=0, bias=False, qk_norm=False)
        spread = gqa.kv_bytes("bf16").evaluate({"kv_head_ranks": min(heads, 8 // (8 // heads))}) * heads
        alone = gqa.kv_bytes("bf16").evaluate({"kv_head_ranks": 1})
        equal.append(spread == alone)
    return holds(*equal, kv_copies(Degrees(8).attn_tp, 1) == 8)


def bound_errors() -> Answer:
    """M34: what the exchange-free agreement refuses, and that it accepts the rest."""

    def refused(bound: int | None, votes: list[Vote]) -> bool:
        try:
            agree_without_exchange(bound, votes)
        except EngineRuleError:
            return True
        return False

    decode, extends = Vote(4, 4), Vote(4, 4, is_extend=True, forward_mode=ForwardMode.EXTEND)
    must = [refused(None, [decode] * 2), refused(3, [decode] * 2), refused(8, [decode, extends])]
    accepts = not refused(4, [decode] * 2)
    return answer("error otherwise" if all(must) and accepts else "accepted")


def replica() -> Answer:
    """M36: the replica of a handed-over request."""
    rooms, replicas = range(0, 40, 7), 4
    formulas: dict[str, Callable[[int], int]] = {
        "bootstrap_room mod replicas": lambda room: room % replicas,
        "bootstrap_room / replicas": lambda room: room // replicas,
    }
    chosen = [decode_replica(room, replicas) for room in rooms]
    return named({name: [f(room) for room in rooms] for name, f in formulas.items()}, chosen)


CLAIMS: Topic = {
    "P03": few_kv_heads,
    "P04": lambda: answer(float(fake_dp_gpus(2, 1, Degrees(4)))),
    "D01": lambda: answer(request_bytes(1)),
    "D02": lambda: answer(request_bytes(kv_copies(Degrees(8).attn_tp, 1))),
    "D03": copies,
    "D04": lambda: answer(float(Degrees(64, attn_dp=4, dcp=8).attn_tp)),
    "D05": merge_error,
    "D06": lambda: holds(*(owner(np.array([1, 5, 9]), 4) == 1)),
    "D07": backend_calls,
    "M03": lambda: answer(*(float(step(DP16, 16 * runs).values["batch"]) for runs in (12, 20))),
    "M21": lambda: answer(*(groups_of(d.layout) for d in BOTH)),
    "M25": headroom,
    "M28": gpus,
    "M29": dcp_share,
    "M30": extend,
    "M33": lambda: answer(float(SHARED_INTEGERS)),
    "M34": bound_errors,
    "M36": replica,
}
