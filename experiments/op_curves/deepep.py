"""Dispatch and combine of DeepEP as rows: its low-latency kernels.

The low-latency kernels send a token once for each expert that it chose and give every expert a group of warps of one
SM: `rounds` = ceil(experts / SMs) groups share an SM, and ceil(experts / rounds) SMs work.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from experiments.op_curves.columns import Column, numbers, read, shapes
from experiments.op_curves.rows import Group
from hw.machine import load_machine
from hw.work import CollectiveKind

Row = Mapping[str, str]

_CHIPS: Final = ("b200", "b300", "gb200", "gb300", "h100", "h200")
_BOTH: Final = (CollectiveKind.DISPATCH, CollectiveKind.COMBINE)
_SCALE_BYTES, _SCALED = 4, 128  # a float32 scale for 128 values of FP8
# The multi-host table leaves 10 choices of all its tokens out: half the messages of 2 tokens, an eighth of 8 tokens'.
_MASKED_TOKENS: Final = 8


def row_bytes(kind: CollectiveKind, hidden: Column) -> Column:
    """Bytes of a row: FP8 values and their scales on the way out, BF16 on the way back."""
    return hidden * (1.0 + _SCALE_BYTES / _SCALED) if kind is CollectiveKind.DISPATCH else 2.0 * hidden


def exchange(
    kind: CollectiveKind,
    rows: Sequence[Row],
    ranks: Column,
    domain: Column,
    sms: Column,
    rounds: Column,
) -> Mapping[str, Column]:
    """What the time of a dispatch or a combine depends on, for ranks of which `domain` share a scale-up domain.

    `copies` of a row leave each of the `rows`, the share that stays at home included. `link` and `nic` are the bytes
    that a rank sends over either; `sms` its thread blocks at work, `rounds` the groups of warps that share one.
    """
    tokens, topk = numbers(rows, "num_token"), numbers(rows, "num_topk")
    experts, width = numbers(rows, "num_experts"), row_bytes(kind, numbers(rows, "hidden_size"))
    copies = tokens * topk
    inside = np.minimum(domain, ranks)
    return {
        "payload": copies * width,
        "size": ranks,
        "outside": (ranks - inside) / ranks,
        "link": copies * width * (inside - 1.0) / ranks,
        "nic": copies * width * (ranks - inside) / ranks,
        "rows": tokens,
        "copies": copies,
        "row_bytes": width,
        "experts": experts,
        "sms": sms,
        "rounds": rounds,
    }


def groups() -> list[Group]:
    """Rows of all tables: on one host of each chip, and on several."""
    return [*_low_latency(), *_hosts()]


def _low_latency() -> list[Group]:
    table = "deepep_ll_6systems_sglang0512"
    mine = [(chip, [r for r in read(table) if r["system"].removesuffix("_sxm") == chip]) for chip in _CHIPS]
    return [
        _low_latency_group(f"deepep low latency {kind} {chip}", chip, kind, table, rows, {})
        for chip, rows in mine
        for kind in _BOTH
    ]


def _hosts() -> list[Group]:
    table = "deepep_ll_multinode_h200_sglang056"
    rows = read(table)
    kept = [r for r in rows if float(r["num_token"]) >= _MASKED_TOKENS]
    flagged = {"under 8 tokens: the table masks 10 choices of all": len(rows) - len(kept)}
    return [
        _low_latency_group(f"deepep low latency hosts {kind} h200", "h200", kind, table, kept, flagged)
        for kind in _BOTH
    ]


def _low_latency_group(
    name: str, chip: str, kind: CollectiveKind, table: str, rows: Sequence[Row], flagged: Mapping[str, int]
) -> Group:
    machine = load_machine(chip)
    host, experts = float(machine.gpus_per_host), numbers(rows, "num_experts")
    ranks = host * numbers(rows, "node_num")
    rounds = np.ceil(experts / float(machine.sms))
    domain = np.full_like(ranks, float(machine.domain))
    features = exchange(kind, rows, ranks, domain, np.ceil(experts / rounds), rounds)
    return _group(name, chip, kind, table, features, 1e-6 * numbers(rows, f"{kind}_avg_t_us"), flagged)


def _group(
    name: str,
    chip: str,
    kind: CollectiveKind,
    table: str,
    features: Mapping[str, Column],
    seconds: Column,
    flagged: Mapping[str, int],
) -> Group:
    problem = ("rows", "copies", "row_bytes", "experts", "size", "sms")
    return Group(
        name=name,
        chip=chip,
        family=str(kind),
        rate="",
        features=features,
        seconds=seconds,
        shape=shapes(*(features[what] for what in problem)),
        source=f"{table}.csv.gz",
        flagged=flagged,
    )
