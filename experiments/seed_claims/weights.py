"""Weights: sharded bytes, staging buffers, gathers, replicated Q, the peak while loading."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from experiments.seed_claims.answer import Answer, Topic, answer, holds
from experiments.seed_claims.article import BOTH, DP2, DP16, FULL, Deployment, step, tables
from explorer.load_peak import loading
from explorer.residents.line import Group
from hw.units import GB, GIB, MIB
from layouts.expression import Expr
from layouts.models.layer import Layer
from layouts.models.model import Model
from layouts.tensor import Tensor

GATHER = "weight_all_gather"


def model() -> Model:
    """The articles' build of Kimi K3 with its draft."""
    return DP16.request.model


def largest_layer(deployment: Deployment) -> float:
    """Bytes of one of the two staging buffers: the largest layer's sharded weights, whole."""
    return float(step(deployment, FULL).memory.staging) / 2


def gathered_bytes(deployment: Deployment, block: str = "") -> float:
    """Bytes that a rank receives in a step by weight gathers of the blocks whose name starts so."""
    priced = step(deployment, FULL)
    return priced.total(np.asarray(priced.priced.parts.sent), lambda b, op: op == GATHER and b.startswith(block))


def exact(expression: Expr, deployment: Deployment) -> Fraction:
    """An expression over the whole quantities of a deployment at full load."""
    return expression.evaluate(whole_values(deployment))


def whole_values(deployment: Deployment) -> dict[str, Fraction]:
    """The whole quantities of a deployment at full load, as exact numbers."""
    values = step(deployment, FULL).values
    return {name: Fraction(round(v)) for name, v in values.items() if abs(v - round(v)) < 1e-9}


def layer_of(kind: str) -> Layer:
    """The first kind of layer whose name starts so."""
    return next(layer for layer in model().kinds if layer.label.startswith(kind))


def tensor(kind: str, name: str) -> Tensor:
    """One weight of a kind of layer."""
    return next(t for t in layer_of(kind).tensors() if t.name == name)


def replicated(name: str) -> Fraction:
    """Bytes of one layer's Q projection for all heads of the DCP group."""
    return exact(tensor("MLA", name).payload(model().precision), DP2) * DP2.layout.dcp


def draft_gathered() -> float:
    """Bytes of the draft's sharded weights, whole: a rank receives all but its own part."""
    ranks = DP16.layout.weight_shard
    return gathered_bytes(DP16, "draft") * ranks / (ranks - 1)


def extra_traffic() -> Answer:
    """K31: what the sharded weights cost in HBM, read once by the GEMMs and written by peers into staging."""

    def moved(deployment: Deployment) -> float:
        values = step(deployment, FULL).values
        read = sum(
            exact(t.copies * (t.format(model().precision).payload * t.parameters) / (t.work_cut or t.cut), deployment)
            * count
            for layer, count in _sharded_layers(values)
            for t in layer.tensors()
            if t.shard is not None
        )
        read += sum(exact(t.payload(model().precision), deployment) for t in _draft_sharded())
        return float(read) + gathered_bytes(deployment)

    return answer(
        (moved(DP16) - moved(DP2)) / GB, note="sharded tensors at the width each GEMM reads, plus bytes from peers"
    )


def _sharded_layers(values: Mapping[str, float]) -> list[tuple[Layer, int]]:
    return [(layer, round(float(values[f"sharded_{k}"]))) for k, layer in enumerate(model().kinds)]


def _draft_sharded() -> list[Tensor]:
    draft = model().draft
    return [t for t in draft.tensors() if t.shard is not None] if draft is not None else []


def resident(deployment: Deployment) -> float:
    """Target weights and their staging buffers, bytes; the draft loads later."""
    priced = step(deployment, FULL)
    lines = zip(tables().memory.lines, priced.memory.lines, strict=True)
    weights = sum(float(size) for line, size in lines if line.group is Group.WEIGHTS and "draft" not in line.name)
    return weights + float(priced.memory.staging)


def load_peaks() -> Answer:
    """M22: usage at the end of loading, and what is released after it."""
    released = [loading(model(), whole_values(d)).released for d in BOTH]
    peaks = [resident(d) + r for d, r in zip(BOTH, released, strict=True)]
    return answer(*(x / GIB for x in (*peaks, *released)), note="layer 0's dense MLP is cut over the attention group")


def sharding_rule() -> Answer:
    """M17: sharded iff the module runs TP1 on the card; layers 1-92; over the cards of a host."""
    whole, cut = step(DP16, FULL).values, step(DP2, FULL).values
    conditions = [
        whole["gathers_attention"] == 1 and whole["attention_shard"] == DP16.layout.weight_shard,
        cut["gathers_attention"] == 0 and cut["attention_shard"] == 1,
        all(v["gathers_moe"] == 1 and v["moe_shard"] == 8 for v in (whole, cut)),
        all((d.layout.weight_shard_layers.first, d.layout.weight_shard_layers.last) == (1, 92) for d in BOTH),
        all(d.layout.weight_shard == d.request.site.gpus_per_host for d in BOTH),
        whole["draft_shard"] == 8 and cut["draft_shard"] == 1,
    ]
    return holds(*conditions)


CLAIMS: Topic = {
    "K01": lambda: answer(largest_layer(DP16)),
    "K02": lambda: answer(largest_layer(DP2)),
    "K03": lambda: answer(gathered_bytes(DP16)),
    "K04": lambda: answer(gathered_bytes(DP2)),
    "K05": lambda: answer(float(step(DP16, FULL).memory.staging) / MIB),
    "K06": lambda: answer(float(step(DP2, FULL).memory.staging) / MIB),
    "K07": lambda: answer(float(step(DP16, FULL).memory.draft_staging) / MIB),
    "K08": lambda: answer(draft_gathered() / GIB),
    "K09": lambda: answer(float(exact(tensor("KDA", "qkv_proj").payload(model().precision), DP16))),
    "K10": lambda: answer(float(replicated("q_b_proj"))),
    "K11": lambda: answer(float(replicated("w_kc"))),
    "K12": lambda: answer(step(DP2, FULL).lines["replicated Q projections"] / GIB),
    "K31": extra_traffic,
    "M17": sharding_rule,
    "M22": load_peaks,
}
