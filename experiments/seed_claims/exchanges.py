"""Exchanges of activations on the critical path, and gathers of weights beside it."""

from dataclasses import replace

from experiments.seed_claims.answer import Answer, Topic, answer
from experiments.seed_claims.article import BOTH, DP2, DP16, FULL, Deployment, Step, price, step
from experiments.seed_claims.weights import GATHER
from hw.units import GB, GIB

KDA, MLA, DRAFT = "KDA + LatentMoE", "MLA + LatentMoE", "draft GQA window + dense"
LOW, HIGH = 64, 256  # instance concurrency: 4 and 16 requests a card
COPY = "weight_local_copy"
HOISTED = "the first draft layer's gather runs before the graph, beside the commit of the states"
GAP = 3.0  # us between two copies of a gather; article 000, beside the bandwidth of S37


def us(op: str, block: str) -> float:
    """An exchange of one layer of DP2 at 128 requests a group."""
    return step(DP2, HIGH).us(op, block)


def activations() -> Answer:
    """S33: the exchanges of activations that DP2 has and DP16 has not."""
    ops = ("attention_reduce_scatter", "moe_all_gather", "dcp_exchange")
    return answer(step(DP2, HIGH).of_op(*ops))


def gather_us(deployment: Deployment, block: str) -> float:
    """One gather: the local copy and the copies from peers, one after the other."""
    priced = step(deployment, HIGH)
    return priced.us(COPY, block) + priced.us(GATHER, block)


def ptop_ms(deployment: Deployment) -> float:
    """Copies from peers, ms a step, the gaps between them taken off."""
    priced = step(deployment, HIGH)
    copies = float(priced.priced.parts.gathered.sum()) * (deployment.layout.weight_shard - 1)
    return priced.total_ms(lambda _, op: op == GATHER) - copies * GAP / 1e3


def bandwidth(deployment: Deployment, block: str, alone: bool = False) -> float:
    """GB/s of one copy from a peer, the gap after it taken off: on average over a step, or as if alone."""
    priced = step(deployment, HIGH)
    ranks = deployment.layout.weight_shard
    seconds = (priced.us(GATHER, block, alone) / (ranks - 1) - GAP) / 1e6
    return priced.sent(GATHER, block) / (ranks - 1) / seconds / GB


def exposed_draft(concurrency: int) -> float:
    """Waits of the draft layers of DP16 for weights whose gather is inside the graph, ms."""
    return sum(step(DP16, concurrency).waits(DRAFT)[1:])


def draft_sharding() -> Answer:
    """M23: what the ledger frees where the draft is sharded and not whole, and what its gathers expose."""
    layers = replace(DP16.layout.weight_shard_layers, draft=False)
    whole = price(DP16.request, replace(DP16.layout, weight_shard_layers=layers), FULL)

    def held(priced: Step) -> float:
        return priced.lines["weights: draft layers"] + float(priced.memory.draft_staging)

    return answer((held(whole) - held(step(DP16, FULL))) / GIB, exposed_draft(FULL), note=HOISTED)


def beside_and_alone() -> Answer:
    """M13: copies while exchanges use the links, and alone."""
    alone = [bandwidth(d, KDA, alone=True) for d in (DP2, DP16)]
    beside = 1.0 + step(DP16, HIGH).contention(GATHER, KDA)
    return answer(*(figure for a in alone for figure in (a / beside, a)))


CLAIMS: Topic = {
    "S26": lambda: answer(us("attention_reduce_scatter", KDA), us("attention_reduce_scatter", MLA)),
    "S27": lambda: answer(us("moe_all_gather", KDA)),
    "S28": lambda: answer(us("dcp_exchange", MLA)),
    "S30": lambda: answer(*(step(d, HIGH).of_op("dispatch", "combine") for d in BOTH)),
    "S33": activations,
    "S34": lambda: answer(ptop_ms(DP16)),
    "S35": lambda: answer(*(gather_us(DP16, block) for block in (KDA, MLA, DRAFT))),
    "S36": lambda: answer(gather_us(DP2, KDA)),
    "S37": lambda: answer(bandwidth(DP16, KDA), bandwidth(DP2, KDA)),
    "S38": lambda: answer(*(sum(step(DP16, c).waits(KDA)) for c in (LOW, FULL))),
    "S39": lambda: answer(exposed_draft(LOW), note=HOISTED),
    "S40": lambda: answer(max(float(step(DP2, c).schedule.wait.sum()) * 1e3 for c in (128, HIGH))),
    "M09": lambda: answer(step(DP2, HIGH).of_op("moe_all_gather")),
    "M12": lambda: answer(*(float(step(d, HIGH).schedule.gather.sum()) * 1e3 for d in BOTH)),
    "M13": beside_and_alone,
    "M23": draft_sharding,
    "M16": lambda: answer(sum(step(DP16, LOW).waits(MLA))),
}
