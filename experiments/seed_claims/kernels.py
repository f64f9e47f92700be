"""Kernels of a step: attention, states, projections, experts; and the blocks that they add up to."""

from functools import cache

import numpy as np

from experiments.seed_claims.answer import Answer, Topic, answer
from experiments.seed_claims.article import BOTH, DP2, DP16, FULL, Deployment, Step, step, tables
from experiments.seed_claims.weights import layer_of, model
from hw.arithmetic import Exact
from hw.compat import x64
from hw.work import FAMILIES, Family
from layouts.mla import MLA
from layouts.moe.work import work as moe_work
from layouts.op import gemms
from layouts.quantities import query_tiles, split_kv

MOE_KDA, MOE_MLA = "KDA + LatentMoE", "MLA + LatentMoE"
MIDDLE, HIGH = 128, 256  # instance concurrency: 8 and 16 requests a card
COPY = "weight_local_copy"


@cache
def moe_ops() -> frozenset[str]:
    """Names of the ops from the norm before the router to the all-gather after the experts."""
    layer = layer_of("MLA")
    split = len(layer.attention.tensors())
    ops = moe_work(layer.ffn, layer.tensors()[split:], model().precision)  # pyright: ignore[reportArgumentType]
    return frozenset(op.name for op in ops) | {"post_attention_norm", "moe_all_gather"}


@cache
def projections(kind: str) -> frozenset[str]:
    """Names of the attention GEMMs of a kind of layer."""
    return frozenset(op.name for op in gemms(layer_of(kind).attention.tensors(), model().precision))


def layers(attention: type) -> int:
    """Layers of the model with this attention."""
    return sum(isinstance(layer.attention, attention) for layer in model().layers)


def both(op: str, block: str, concurrency: int) -> Answer:
    """Microseconds of one execution in DP16 and in DP2."""
    return answer(*(step(d, concurrency).us(op, block) for d in BOTH))


def attention_us(concurrency: int) -> float:
    """The MLA decode kernel of DP16."""
    return step(DP16, concurrency).us("mla_decode", MOE_MLA)


def wave_rounding() -> Answer:
    """S19: if the kernel's time were proportional to its CTAs and not to its waves; and what the rules give."""
    saved = [_proportional_saving(concurrency) for concurrency in (HIGH, FULL, MIDDLE)]
    fewest = [_fewest_waves(concurrency) for concurrency in (HIGH, FULL, MIDDLE)]
    rule = ", ".join(f"{split} splits {ms:+.1f} ms" for split, ms in fewest)
    note = f"the rule as published keeps 1 split for 8 requests and more: saves 0; fewest waves: {rule}"
    return answer(*saved, note=note)


def _proportional_saving(concurrency: int) -> float:
    ctas, sms = _grid(concurrency)
    waves = -(-ctas // sms)
    return attention_us(concurrency) * (1 - ctas / (waves * sms)) * layers(MLA) / 1e3


def _fewest_waves(concurrency: int) -> tuple[int, float]:
    """The split of at most 32 that minimises waves / split, and what a step gains by it, ms."""
    ctas, sms = _grid(concurrency)
    curves = DP16.request.machine.curves
    fixed = float(np.asarray(curves.cta_latency)[FAMILIES.index(Family.ATTENTION)].max()) * 1e6
    one_wave = attention_us(concurrency) / -(-ctas // sms) - fixed  # of a whole context, without the CTA's fixed part

    def us(split: int) -> float:
        return -(-ctas * split // sms) * (fixed + one_wave / split)

    best = min(range(1, 33), key=us)
    return best, (us(1) - us(best)) * layers(MLA) / 1e3


def _grid(concurrency: int) -> tuple[int, int]:
    return round(float(step(DP16, concurrency).values["attention_ctas"])), round(float(DP16.request.machine.sms))


def splits() -> Answer:
    """M04: KV splits of the published rule."""
    with x64():
        ar, sms = Exact(), DP16.request.machine.sms
        tiles = query_tiles(ar, float(tables().traits.heads), 5.0)
        return answer(*(float(split_kv(ar, sms, float(b), tiles)) for b in (1, 2, 4, 8, 16, 24)))


def kda_projections(deployment: Deployment) -> float:
    """S25: qkv and o projections of all KDA layers, ms a step."""
    return step(deployment, HIGH).total_ms(lambda b, op: b.startswith("KDA") and op in ("qkv_proj", "o_proj"))


def moe_ms(priced: Step, block: str = "") -> float:
    """The MoE segment of all layers, ms a step."""
    return priced.total_ms(lambda b, op: "LatentMoE" in b and b.startswith(block) and op in moe_ops())


def moe_layer_us(concurrency: int) -> float:
    """The MoE segment of one layer of DP2."""
    return moe_ms(step(DP2, concurrency), "MLA") / layers(MLA) * 1e3


def attention_block(priced: Step, kind: str) -> float:
    """All kernels of a kind of layer outside its MoE segment, local copies included, ms a step."""

    def wanted(block: str, op: str) -> bool:
        return block.startswith(kind) and op not in moe_ops() and op != "weight_all_gather"

    return priced.total_ms(wanted)


def fixed_weights(priced: Step) -> float:
    """KDA projections and the local copies of the gathered weights, ms a step."""
    return priced.total_ms(lambda b, op: b.startswith("KDA") and (op in projections("KDA") or op == COPY))


def outside(priced: Step) -> float:
    """Time of the step in which no kernel runs on the main stream, ms."""
    return priced.ms - float(priced.schedule.main.sum()) * 1e3


def of_middle_difference() -> Answer:
    """M06: two parts of DP16 minus DP2 at 8 requests a card."""
    a, b = (step(d, MIDDLE) for d in BOTH)
    return answer(fixed_weights(a) - fixed_weights(b), outside(a) - outside(b))


def of_high_difference() -> Answer:
    """M07: two parts of DP16 minus DP2 at 16 requests a card."""
    a, b = (step(d, HIGH) for d in BOTH)
    return answer(*(attention_block(a, kind) - attention_block(b, kind) for kind in ("MLA", "KDA")))


def state_beside() -> Answer:
    """M14: the state kernel at 24 requests while copies run, and alone."""
    priced = step(DP16, FULL)
    alone = priced.us("kda_state", MOE_KDA, alone=True)
    return answer(alone * (1.0 + priced.contention("kda_state", MOE_KDA)), alone)


def tails() -> Answer:
    """M15: gathers around the head and the head in DP16, of target and draft (0.24 ms are two heads); in DP2 the one
    all-gather behind the target, for two of these bytes in 0.32 ms are more than the links can carry."""
    around = ("logits_all_gather", "logits_row_gather", "lm_head")
    both_heads = step(DP16, HIGH).total_ms(lambda _, op: op in around)
    return answer(both_heads, step(DP2, HIGH).us("logits_all_gather", "tail") / 1e3)


CLAIMS: Topic = {
    "S15": lambda: answer(attention_us(HIGH)),
    "S16": lambda: answer(step(DP2, HIGH).us("mla_decode", MOE_MLA)),
    "S17": lambda: answer(attention_us(MIDDLE), note="8 requests: 80 CTAs, one wave"),
    "S18": lambda: answer(*map(float, _grid(HIGH))),
    "S19": wave_rounding,
    "S21": lambda: both("kda_state", MOE_KDA, HIGH),
    "S22": lambda: both("kda_state", MOE_KDA, MIDDLE),
    "S23": lambda: both("qkv_proj", MOE_KDA, HIGH),
    "S24": lambda: both("o_proj", MOE_KDA, HIGH),
    "S25": lambda: answer(*map(kda_projections, BOTH)),
    "S29": lambda: answer(step(DP2, HIGH).of_op("dcp_pack_merge")),
    "S31": lambda: answer(*(step(DP16, HIGH).us(op, MOE_KDA) for op in ("w13", "w2"))),
    "S32": lambda: answer(*(moe_ms(step(d, HIGH)) for d in BOTH)),
    "M04": splits,
    "M06": of_middle_difference,
    "M07": of_high_difference,
    "M10": lambda: answer(*(step(DP2, HIGH).us(op, MOE_KDA) for op in ("w13", "w2"))),
    "M11": lambda: answer(moe_layer_us(MIDDLE), moe_layer_us(HIGH)),
    "M14": state_beside,
    "M15": tails,
}
