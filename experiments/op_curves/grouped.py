"""Public tables of grouped GEMMs as rows for the time model: the two products of the routed experts.

FLOPs and bytes are those of the layouts' own expert GEMMs, for the experts and rows that the benchmark's routing
brings to the timed rank. One served row times both products and what stands around them (routing, gathering of rows,
quantisation, activation, weighted sum); the H800 rows time one product each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.op_curves.columns import Column, evaluate, named, numbers, read
from experiments.op_curves.expert_loads import dealt_in_groups, mean_load
from experiments.op_curves.gemm import overtaken, screened, size
from experiments.op_curves.rows import Group
from layouts.moe.shape import MoE
from layouts.moe.work import work as moe_work
from layouts.tensor import FORMATS, Precision

_LIMITED = "the router keeps to four of eight expert groups, so that drawn loads are not those that were timed"
_HALF = "one row an expert, half of the time of two: some experts were not drawn"
_DRAWN = "power_law"
# expert groups of the router that limits its choice, and how many of them it keeps
_GROUPS, _KEPT = 8, 4


@dataclass(frozen=True)
class _Table:
    """Rows of one chip and kernel. `block`: the kernel pads the intermediate width of a rank to a multiple of it.
    `tile`: most rows of its tiles; tiles make no other table's times any plainer."""

    chip: str
    family: str
    form: str
    rate: str
    source: str
    dtype: str
    block: int
    limited: bool = False
    tile: int = 0


_K3, _DS = "moe_k3_shape_sglang0514", "moe_deepseek_v3_{}_sxm_sglang0514"
_TABLES = (
    *(_Table(c, "grouped_gemm_packed", "mxfp4", "bf16", _K3, "w4a16_mxfp4", 256) for c in ("b200", "gb200")),
    *(
        _Table(c, "grouped_gemm_packed", "mxfp4", "fp8", _K3, "w4a8_mxfp4_mxfp8", 256, tile=256)
        for c in ("b200", "gb200")
    ),
    _Table("h200", "grouped_gemm_packed", "mxfp4", "bf16", _K3, "w4a16_mxfp4", 1),
    *(_Table(c, "grouped_gemm", "fp8", "fp8", _DS.format(c), "fp8_block", 128, limited=True) for c in ("b200", "h200")),
)


def groups() -> list[Group]:
    """Every grouped GEMM of the shipped tables, one for each chip and format."""
    return [*(_served(t) for t in _TABLES), _h800()]


def _served(t: _Table) -> Group:
    every = [r for r in read(t.source) if r["moe_dtype"] == t.dtype and _system(r, t.chip)]
    table = [r for r in every if not (t.limited and r["distribution"].startswith(_DRAWN))]
    seconds = numbers(table, "latency") * 1e-3
    loads = np.array([_load(r, t.limited) for r in table]).T
    bad = np.zeros(len(table), dtype=bool)
    series = [(r["moe_tp_size"], r["moe_ep_size"], r["distribution"]) for r in table]
    for one in set(series):
        here = np.array([s == one for s in series])
        bad[here] = overtaken(seconds[here], numbers(table, "num_tokens")[here])
    name = f"{t.family} {t.chip} {t.form} {t.rate}"
    group = screened(name, t.chip, t.family, t.rate, _features(t, table, *loads), seconds, bad, t.source)
    fixed = {"tile_rows": float(t.tile)} if t.tile else {}
    return replace(_also(group, _LIMITED, len(every) - len(table)), fixed=fixed)


def _system(row: Mapping[str, str], chip: str) -> bool:
    """A table of one chip has no column for it."""
    return "system" not in row or row["system"].removesuffix("_sxm") == chip


def _also(group: Group, reason: str, count: int) -> Group:
    return replace(group, flagged={**group.flagged, reason: count} if count else group.flagged)


def _load(row: Mapping[str, str], limited: bool) -> tuple[float, float]:
    """Experts with rows, and rows, on the timed rank."""
    tokens, experts, topk, ranks = (int(row[n]) for n in ("num_tokens", "num_experts", "topk", "moe_ep_size"))
    if not limited:
        return mean_load(row["distribution"], tokens, experts, topk, ranks)
    loads = dealt_in_groups(tokens, experts, topk, _GROUPS, _KEPT)[: experts // ranks]
    return float(np.count_nonzero(loads)), float(loads.sum())


def _features(t: _Table, table: Sequence[dict[str, str]], touched: Column, rows: Column) -> dict[str, Column]:
    names = ("hidden_size", "inter_size", "moe_tp_size", "moe_ep_size", "num_tokens", "topk", "num_experts")
    hidden, inter, cut, ranks, tokens, topk, experts = (numbers(table, n) for n in names)
    width = np.ceil(inter / cut / t.block) * t.block
    work = _products(t.form, hidden, width, touched, rows, ("w13", "w2"))
    choices = tokens * topk
    around = size(rows, 2 * width + hidden, touched, choices * ranks / experts, 2 * choices * hidden)
    return work | around | {"launches": np.full(len(rows), 2.0)}


def _products(
    form: str, hidden: Column, width: Column, touched: Column, rows: Column, which: tuple[str, ...]
) -> dict[str, Column]:
    """FLOPs and bytes of the layouts' expert GEMMs, of the named ones together."""
    precision = Precision({"experts": FORMATS[form]})
    values = {"expert_rows": rows, "experts_touched": touched, "expert_tp": 1.0}
    work = {"flops": np.zeros(len(rows)), "bytes": np.zeros(len(rows))}
    for h, i in {*zip(hidden, width, strict=True)}:
        here = (hidden == h) & (width == i)
        moe = MoE(int(h), 1, 1, math.ceil(i), 0, 0, bias=False)
        ops = moe_work(moe, moe.tensors(), precision)
        for name in which:
            op = named(ops, name)
            work["flops"] = work["flops"] + here * evaluate(op.flops, values)
            work["bytes"] = work["bytes"] + here * evaluate(op.bytes, values)
    return work


def _h800() -> Group:
    """Decode (masked) and prefill (contiguous) tables; each product is a row."""
    sources = ("grouped_gemm__decode__h800__data", "grouped_gemm__prefill__h800__data")
    every = [row for source in sources for row in read(source)]
    table = [r for r in every if r["tokens_per_expert"] != "1"]
    names = ("hidden_size", "intermediate_size", "num_local_experts", "tokens_per_expert")
    hidden, inter, experts, mean = (numbers(table, n) for n in names)
    up = _products("fp8", hidden, inter, experts, experts * mean, ("w13",))
    down = _products("fp8", hidden, inter, experts, experts * mean, ("w2",))
    up |= size(experts * mean, 2 * inter, experts, mean)
    down |= size(experts * mean, hidden, experts, mean)
    work = {n: np.concatenate([up[n], down[n]]) for n in up}
    seconds = np.concatenate([numbers(table, "up_proj_us"), numbers(table, "down_proj_us")]) * 1e-6
    # not screened by `overtaken`: two kernels, and no series of one
    kept = np.zeros(len(seconds), dtype=bool)
    source = " and ".join(sources)
    group = screened("grouped_gemm h800 fp8", "h800", "grouped_gemm", "fp8", work, seconds, kept, source)
    return _also(group, _HALF, 2 * (len(every) - len(table)))
