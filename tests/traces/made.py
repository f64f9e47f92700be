"""A trace as torch's profiler writes one, small enough to add up by hand (microseconds, step from 0 to 100):

    stream 7    kda_layer_0 | rms 0-5, attn_kda 5-25, all-gather 25-35, gemm 35-40 |
                mla_layer_1 | rms 50-55, attn_mla 55-75, all-gather 75-85, gemm 85-90 |
    stream 20   memcpy128 10-12, peer copies 12-20, 22-30, 32-46; another one, later, 60-70

One graph launched it all, so that every copy has the same correlation id. A longer step and another GPU follow.
"""

import json
import pathlib
from typing import Any, Final

Event = dict[str, Any]
GATHER: Final = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PEER: Final = "Memcpy PtoP (Device -> Device)"


def event(category: str, name: str, stream: int, start: float, end: float, **args: Any) -> Event:
    told = {"device": 0, "stream": stream, "correlation": 7, **args}
    times = {"ts": 1000 + start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, "pid": told["device"] or 0, "tid": stream, **times, "args": told}


def kernel(name: str, start: float, end: float, stream: int = 7, **args: Any) -> Event:
    return event("kernel", name, stream, start, end, **args)


def peer(start: float, end: float, size: int, source: int) -> Event:
    ends = {"fromDevice": source, "inDevice": 0, "toDevice": 0}
    found = event("gpu_memcpy", PEER, 20, start, end, bytes=size, **ends)
    del found["args"]["device"]
    return found


def annotation(name: str, start: float, end: float, stream: int = 7, layer_kind: str | None = None) -> Event:
    """torch's have no arguments; ours may say the kind of layer."""
    found = event("gpu_user_annotation", name, stream, start, end) | {"args": {}}
    return found if layer_kind is None else found | {"args": {"stream": stream, "layer_kind": layer_kind}}


STEP: Final = (
    annotation("ProfilerStep#1", 0, 100),
    annotation("kda_layer_0", 0, 40),
    kernel("rms", 0, 5),
    kernel("void attn_kda<80>", 5, 25),
    kernel(GATHER, 25, 35),
    kernel("gemm", 35, 40),
    annotation("mla_layer_1", 50, 90),
    annotation("sub_block_3", 50, 60),  # inside the layer, as the next
    annotation("sub_block_4", 62, 64),
    kernel("rms", 50, 55),
    kernel("void attn_mla<80>", 55, 75),
    kernel(GATHER, 75, 85),
    kernel("gemm", 85, 90),
    kernel("memcpy128", 10, 12, 20),
    peer(12, 20, 8000, 1),
    peer(22, 30, 8000, 2),
    peer(32, 46, 14000, 3),
    peer(60, 70, 10000, 1),
)
OTHERS: Final = (
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
    {"ph": "s", "id": 7, "pid": 0, "tid": 7, "ts": 1000, "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 990, "dur": 400, "args": {}},
    {"ph": "X", "cat": "user_annotation", "name": "decode", "pid": 9, "tid": 9, "ts": 990, "dur": 500},
    annotation("ProfilerStep#2", 200, 320),
    kernel("gemm", 210, 320),
    annotation("ProfilerStep#3", 400, 401),  # a turn without work
    kernel("gemm", 400, 401),
    annotation("pause", 500, 600),
    annotation("ProfilerStep#1", 10, 70) | {"tid": 20},  # what of the first step the other stream runs
    kernel("gemm", 0, 30, device=1),
)
ALL: Final = (*STEP, *OTHERS)


def written(path: pathlib.Path, events: tuple[Event, ...] = ALL) -> pathlib.Path:
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}], "traceName": "made"}
    path.write_text(json.dumps({**head, "traceEvents": list(events), "displayTimeUnit": "ms"}))
    return path
