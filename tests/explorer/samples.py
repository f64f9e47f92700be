"""Small documents written by hand, with figures that are easy to follow into a table or a picture."""

from typing import Any, Final

from hw.units import GIB

Document = dict[str, Any]

HEADING: Final[Document] = {
    "request": {
        "model": "toy", "draft": "mtp", "hardware": "b200", "gpus": 16, "gpus_per_host": 8, "domain": 8,
        "phase": "decode", "context": 100000, "concurrency": 64, "verify_width": 5, "accept_length": 3.5,
        "max_tpot_seconds": None, "mem_fraction": None, "extra_slots": None, "chunk": 8192, "seed": 0,
    },
    "precision": {"attention": "fp8", "kv": "fp8"},
    "objective": "step",
    "versions": {"meshwright": "0.1.0", "jax": "0.10.2", "python": "3.11.7"},
    "notes": ["the vision tower is not counted"],
}  # fmt: skip
DP2: Final = {"layout": {"attn_dp": 2, "dcp": 8, "ep": 16}, "layout_text": "attn_dp=2,dcp=8,ep=16"}
DP16: Final = {"layout": {"attn_dp": 16, "ep": 16}, "layout_text": "attn_dp=16,ep=16"}


def _op(name: str, kind: str, stream: str, count: int, each: float, bound: str) -> Document:
    total = count * each
    return {"name": name, "layer_kind": kind, "stream": stream, "count": count, "seconds_each": each,
            "seconds_total": total, "bound": bound, "provenance": "fitted"}  # fmt: skip


def _position(name: str, kind: str, start: float, end: float, gather: tuple[float, float] | None) -> Document:
    first, last = gather or (None, None)
    return {"name": name, "layer_kind": kind, "start": start, "end": end, "gather_start": first, "gather_end": last}


# Layers of 2 ms; the weights of layer 1 come in 3 ms, so that the main stream waits 1 ms for them.
COST: Final[Document] = {
    "schema": "cost/1", **HEADING, **DP16,
    "step_seconds": 5e-3,
    "step_seconds_range": [4e-3, 7e-3],
    "ops": [
        _op("weight_all_gather", "KDA + MoE", "gather", 1, 3e-3, "link"),
        _op("qkv_proj", "KDA + MoE", "main", 1, 2e-3, "memory"),
        _op("mla_decode", "MLA + MoE", "main", 1, 1.9e-3, "compute"),
        _op("norm", "MLA + MoE", "main", 1, 1e-4, "latency"),
    ],
    "streams": {
        "main": {"busy": 4e-3, "idle": 1e-3, "exposed": 4e-3},
        "gather": {"busy": 3e-3, "idle": 2e-3, "exposed": 1e-3},
        "host": {"busy": 5e-4, "idle": 4.5e-3, "exposed": 0.0},
    },
    "critical_path": [
        {"stream": "main", "name": "MLA + MoE", "seconds": 2e-3, "share": 0.4},
        {"stream": "main", "name": "KDA + MoE", "seconds": 2e-3, "share": 0.4},
        {"stream": "gather", "name": "wait for the weights of KDA + MoE", "seconds": 1e-3, "share": 0.2},
    ],
    "layer_kinds": [
        {"layer_kind": "MLA + MoE", "count": 1, "main_seconds": 2e-3, "gather_seconds": 0.0, "wait_seconds": 0.0},
        {"layer_kind": "KDA + MoE", "count": 1, "main_seconds": 2e-3, "gather_seconds": 3e-3, "wait_seconds": 1e-3},
    ],
    "timeline": [
        _position("layer 0", "MLA + MoE", 0.0, 2e-3, None),
        _position("layer 1", "KDA + MoE", 3e-3, 5e-3, (0.0, 3e-3)),
    ],
}  # fmt: skip


def _line(name: str, group: str, gib: float, exact: bool = True, low: float = 1.0, high: float = 1.0) -> Document:
    size = int(gib * GIB)
    return {"name": name, "group": group, "bytes": size, "exact": exact, "rule": "a rule", "provenance": "a source",
            "low": int(low * size), "high": int(high * size)}  # fmt: skip


MEMORY: Final[Document] = {
    "schema": "memory/1", **HEADING, **DP2,
    "lines": [
        _line("process groups", "start", 1.25, exact=False, low=0.5, high=2.0),
        _line("weights: experts", "weights", 85.5),
        _line("weights: attention", "weights", 9.25),
        _line("staging: draft", "staging", 0.0),
        _line("KDA state", "state", 16.75),
        _line("KV pool", "kv", 34.5),
        _line("CUDA graphs", "reserve", 10.25, exact=False, low=0.75, high=1.5),
    ],
    "feasible": True,
    "budget_bytes": int(51.25 * GIB),
    "free_bytes": int(157.5 * GIB),
    "mem_fraction": 0.934,
    "engine_default_mem_fraction": 0.9,
    "kv_tokens_per_rank": 2687000,
    "kv_tokens_instance": 42992000,
    "max_running_requests": 384,
    "binding_clamp": "slots",
    "longest_context": 1048576,
    "load_peak_bytes": 120 * GIB,
    "released_after_load": 20 * GIB,
    "engine": {},
}  # fmt: skip

SENSITIVITY: Final[Document] = {
    "schema": "sensitivity/1", **HEADING, **DP2, "step_seconds": 68.5e-3,
    "rows": [
        {"parameter": "context", "value": 100000.0, "unit": "tokens", "elasticity": 0.1, "active": "mla_decode"},
        {"parameter": "hbm_bandwidth", "value": 7.7e12, "unit": "B/s", "elasticity": -0.4, "active": "memory of w13"},
        {"parameter": "gemm.latency", "value": 1.14e-5, "unit": "s", "elasticity": 0.2, "active": "latency of o_proj"},
        {"parameter": "accept", "value": 3.5, "unit": "tokens", "elasticity": 0.0, "active": ""},
    ],
}  # fmt: skip


def _row(group: str, name: str, a: float, b: float, unit: str, cause: str = "") -> Document:
    return {"class": group, "name": name, "a": a, "b": b, "difference": b - a, "unit": unit, "cause": cause}


# Bytes that a rank receives of its weights in a step: 48.41 GB under DP16, 14.77 GB under DP2 x DCP8.
COMPARE: Final[Document] = {
    "schema": "compare/1", **HEADING, "a": DP16, "b": DP2,
    "rows": [
        _row("conserved", "KV read", 5529600000, 5529600000, "bytes"),
        _row("not conserved", "staging written", 48411181056, 14771814400, "bytes", "attn_tp 1 / 8"),
        _row("moved", "dcp_exchange", 0, 331591680, "bytes"),
        _row("time", "step", 78.8e-3, 68.5e-3, "s", "most: qkv_proj"),
        _row("memory", "KV pool", int(41.1 * GIB), int(34.6 * GIB), "bytes", "slots 33 / 209"),
        _row("memory", "KV tokens a rank", 3192000, 2687000, "tokens"),
        _row("memory", "nothing", 0, 0, "bytes"),
    ],
}  # fmt: skip


def _candidate(layout: Document, step: float, tokens: int, feasible: bool = True) -> Document:
    held = {key: MEMORY[key] for key in ("feasible", "budget_bytes", "free_bytes", "kv_tokens_per_rank",
                                         "max_running_requests", "binding_clamp", "longest_context")}  # fmt: skip
    return {
        **layout, "concurrency": 64,
        "step_seconds": step, "step_seconds_range": [0.9 * step, 1.2 * step], "tpot_seconds": step / 3.5,
        "tokens_per_second": 224 / step, "tokens_per_second_per_gpu": 14 / step,
        "tokens_per_second_per_user": 3.5 / step, "feasible": feasible,
        "binding": "HBM bandwidth, 41 % of the step", "certified": True,
        "memory": {**held, "kv_tokens_instance": tokens, "lines": MEMORY["lines"]},
    }  # fmt: skip


PLAN: Final[Document] = {
    "schema": "plan/1", **HEADING,
    "best": _candidate(DP2, 50e-3, 42992000),
    "candidates": [
        _candidate(DP2, 50e-3, 42992000),
        _candidate(DP16, 80e-3, 51100000),
        _candidate({"layout": {}, "layout_text": "attn_tp=16,ep=16,vocab_tp=8"}, 90e-3, 1000000, feasible=False),
    ],
    "search": {"space": 1234, "enumerated": 1234, "exact_evaluations": 32, "starts": 16, "gradient_steps": 200,
               "regret": 0.0, "seconds": 2.5},
}  # fmt: skip

ALL: Final = (PLAN, COST, MEMORY, SENSITIVITY, COMPARE)
