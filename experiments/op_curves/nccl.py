"""Collectives of NCCL, an engine's own all-reduce inside a host, and point-to-point sends, as rows.

Sizes in the tables are those of the larger side, which is what `hw.work.Collective` calls the payload of each kind.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from jaxtyping import Bool

from experiments.op_curves.columns import Column, numbers, read, shapes
from experiments.op_curves.rows import Group
from hw.work import CollectiveKind, sent_bytes

KINDS: Final = {
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "all_reduce": CollectiveKind.ALL_REDUCE,
}
_CHIPS: Final = ("b200", "gb200", "h100", "h200")
_SENDS: Final = {"h100": "H100-SXM-80GB_sendrecv", "h200": "H200-SXM-141GB_sendrecv"}
# Beyond this the engine hands a buffer to NCCL: all tables jump between 8 and 16 MiB.
_CUSTOM_LIMIT: Final = 8 * 2**20
# A repetition scatters by a few percent; an exchange this much slower than a larger one was disturbed.
_DISTURBED: Final = 1.2

Row = Mapping[str, str]


def disturbed(payload: Column, size: Column, seconds: Column) -> Bool[np.ndarray, " rows"]:
    """Whether a larger exchange among as many ranks took less than 1 / 1.2 of the time, in any repetition."""
    larger = (payload[None, :] > payload[:, None]) & (size[None, :] == size[:, None])
    fastest = np.where(larger, seconds[None, :], np.inf).min(axis=1)
    return seconds > _DISTURBED * fastest


def collective(kind: CollectiveKind, payload: Column, size: Column) -> dict[str, Column]:
    """What the time of a collective inside one domain depends on.

    `sent`: bytes that a rank sends by the bandwidth-optimal algorithm. `direct`: by handing its part to every peer at
    once, which for an all-reduce is the whole buffer. `home`: bytes of the rank's own part, which it copies.
    """
    reduces = kind is CollectiveKind.ALL_REDUCE
    sent = np.asarray(sent_bytes(kind, payload, size))
    return {
        "payload": payload,
        "size": size,
        "sent": sent,
        "direct": (size - 1.0) * payload if reduces else sent,
        "home": np.zeros_like(payload) if kind is CollectiveKind.SEND else (2.0 if reduces else 1.0) * payload / size,
    }


def groups() -> list[Group]:
    """Rows of all tables; one group for each chip, kind and library."""
    library, own = _nccl(), _custom()
    return [*library, *own, *(_least(group, library) for group in own), *_sends()]


def _least(own: Group, library: Sequence[Group]) -> Group:
    """All-reduce as an engine does it: by its own kernel up to its limit where that is faster, else by the library."""
    other = next(g for g in library if (g.chip, g.family) == (own.chip, own.family))
    best: dict[tuple[float, float], float] = {}
    for group in (own, other):
        for key, t in zip(
            zip(group.features["payload"], group.features["size"], strict=True), group.seconds, strict=True
        ):
            best[key] = min(t, best.get(key, np.inf))
    payload, size = np.array([*best]).T
    return Group(
        name=f"least all_reduce {own.chip}",
        chip=own.chip,
        family=own.family,
        rate="",
        features=collective(CollectiveKind.ALL_REDUCE, payload, size),
        seconds=np.array([*best.values()]),
        shape=shapes(payload, size),
        source=f"{own.source}, {other.source}",
        flagged={},
    )


def _nccl() -> list[Group]:
    """Two formats of equal bytes are repetitions of one problem."""
    table = "nccl_perf_b200_h200_gb200_h100"
    rows = read(table)
    found = []
    for chip in _CHIPS:
        for name, kind in KINDS.items():
            mine = [r for r in rows if r["op_name"] == name and r["system"].removesuffix("_sxm") == chip]
            found.append(_group(f"nccl {kind} {chip}", chip, kind, table, mine, "bytes", {}))
    return found


def _custom() -> list[Group]:
    table = "custom_allreduce_sglang0514"
    rows = read(table)
    screens: dict[str, Callable[[Row], bool]] = {
        "launched one by one: the host's time": lambda r: r["backend"] != "sglang_graph",
        "over 8 MiB: handed to NCCL": lambda r: float(r["message_size"]) > _CUSTOM_LIMIT,
    }
    return [
        _group(
            f"custom all_reduce {chip}",
            chip,
            CollectiveKind.ALL_REDUCE,
            table,
            [r for r in rows if r["system"].removesuffix("_sxm") == chip],
            "message_size",
            screens,
        )
        for chip in ("b200", "gb200", "h200")
    ]


def _sends() -> list[Group]:
    """Times are rounded to microseconds; the first size, under 1 KiB, is printed as 0."""
    found = []
    for chip, table in _SENDS.items():
        rows = [
            {"num_gpus": "2", "bytes": str(1024 * int(r["size(kb)"])), "latency_us": r["time(us)"]} for r in read(table)
        ]
        screens: dict[str, Callable[[Row], bool]] = {"size rounded to 0": lambda r: r["bytes"] == "0"}
        found.append(_group(f"nccl send {chip}", chip, CollectiveKind.SEND, table, rows, "bytes", screens))
    return found


def _group(
    name: str,
    chip: str,
    kind: CollectiveKind,
    table: str,
    rows: Sequence[Row],
    bytes_column: str,
    screens: Mapping[str, Callable[[Row], bool]],
) -> Group:
    flagged = {}
    for reason, fails in screens.items():
        flagged[reason] = sum(map(fails, rows))
        rows = [row for row in rows if not fails(row)]
    payload, size = numbers(rows, bytes_column), numbers(rows, "num_gpus")
    seconds = 1e-6 * numbers(rows, "latency_us")
    bad = disturbed(payload, size, seconds)
    flagged["slower than a larger exchange"] = int(bad.sum())
    payload, size, seconds = payload[~bad], size[~bad], seconds[~bad]
    return Group(
        name=name,
        chip=chip,
        family=str(kind),
        rate="",
        features=collective(kind, payload, size),
        seconds=seconds,
        shape=shapes(payload, size),
        source=f"{table}.csv.gz",
        flagged=flagged,
        used=kind is not CollectiveKind.ALL_REDUCE,  # engines have their own inside a host: `_least`
    )
