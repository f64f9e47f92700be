"""Public tables of Kimi Delta Attention kernels as rows for the time model.

Three kernels that do not share a curve: the chunked form of prefill, the recurrent step of decode and verification
(which keeps a state for each token), and the short convolution. A table's rows are one layer on one rank.
"""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.op_curves.columns import Column, evaluate, named, numbers, read, shapes
from experiments.op_curves.rows import Group
from layouts.kda import work as kda_work
from layouts.kda.shape import KDA
from layouts.tensor import FORMATS, Precision

_CHUNK = 64  # tokens of a chunk of the chunked kernel
_WIDTH = 128
_CONV = 4
# bf16 values a row, head and channel through HBM in all kernels of the chunked form together, the two that write
# and read a state a chunk included: the count at which one bandwidth fits row traffic and state traffic
_CHUNK_VALUES = 20
_PRECISION = Precision({"state": FORMATS["fp32"]})
_TABLES = {
    "b200": "kda_b200_sxm_sglang0516",
    "h200": "kda_h200_sxm_sglang0516",
    "gb200": "kda_gb200_sglang0516",
}

Rows = list[dict[str, str]]


def groups() -> list[Group]:
    """Every KDA group of the shipped tables, one for each chip and kernel."""
    return [_group(chip, family, *kernels) for chip in _TABLES for family, kernels in _KERNELS.items()]


def _group(chip: str, family: str, kernels: tuple[str, ...], features: Callable[[Rows], dict[str, Column]]) -> Group:
    rows = [r for r in read(_TABLES[chip]) if r["kernel_source"] in kernels]
    kept = [r for r in rows if not _pads(r)]
    reason = {"verification of 2 tokens on Blackwell takes as long as one of 4": len(rows) - len(kept)}
    problem = tuple(numbers(kept, n) for n in ("num_v_heads", "batch_size", "seq_len"))
    seconds = numbers(kept, "latency") * 1e-3
    flagged = reason if len(rows) > len(kept) else {}
    name = f"{family} {chip}"
    return Group(name, chip, family, "bf16", features(kept), seconds, shapes(*problem), _TABLES[chip], flagged)


def _pads(row: Mapping[str, str]) -> bool:
    return row["kernel_source"] == "fused_kda_decode_mtp_dspark" and row["seq_len"] == "2"


def _sizes(rows: Rows) -> tuple[Column, Column, Column]:
    """Heads on the rank, requests, tokens of a request."""
    return numbers(rows, "num_v_heads"), numbers(rows, "batch_size"), numbers(rows, "seq_len")


def _features(**columns: Column) -> dict[str, Column]:
    blank = np.zeros(len(columns["bytes"]))
    every = {n: blank for n in ("flops", "bytes", "resident", "ctas", "steps", "copied")}
    return {**every, "splits": blank + 1, **columns}


def _state(heads: Column, requests: Column) -> Column:
    """Bytes of all fp32 states."""
    return 4.0 * _WIDTH * _WIDTH * heads * requests


def _chunk(rows: Rows) -> dict[str, Column]:
    """Work of whole chunks, traffic of the tokens that there are, and a walk over the chunks of a prompt one by one."""
    heads, requests, tokens = _sizes(rows)
    chunks = np.ceil(tokens / _CHUNK)
    flops = 7.0 * _WIDTH * _WIDTH * heads * requests * chunks * _CHUNK
    moved = 2.0 * _CHUNK_VALUES * _WIDTH * heads * requests * tokens + 2.0 * _state(heads, requests)
    return _features(flops=flops, bytes=moved, ctas=heads * requests, steps=chunks)


def _step(rows: Rows) -> dict[str, Column]:
    """The state is read and written in place, and kept once more after each token but the last of a verification, so
    that a repeated launch may find it in L2."""
    heads, requests, tokens = _sizes(rows)
    values = {"requests": requests, "rows": requests * tokens, "verify": tokens, "attn_tp": 1.0}
    moved, copied = np.zeros(len(rows)), np.zeros(len(rows))
    for count in np.unique(heads):
        kda = KDA(7168, int(count), _WIDTH, _CONV, full_rank_gate=True)
        op = named(kda_work.decode(kda, (), _PRECISION), "kda_state")
        moved = np.where(heads == count, evaluate(op.bytes, values), moved)
        copied = np.where(heads == count, evaluate(op.shape["copied"], values), copied)
    return _features(bytes=moved, copied=copied, resident=_state(heads, requests), steps=tokens)


def _conv_step(rows: Rows) -> dict[str, Column]:
    """Each token also reads and writes the window of the conv_kernel - 1 inputs before it, in bf16."""
    heads, requests, tokens = _sizes(rows)
    moved = _channels(heads) * requests * tokens * (2 * 2 + 2 * 2 * (_CONV - 1))
    return _features(bytes=moved, resident=moved)


def _conv_prefill(rows: Rows) -> dict[str, Column]:
    """Three launches, for q, k and v: input and output once. A prompt below 16 tokens takes a shorter walk."""
    heads, requests, tokens = _sizes(rows)
    moved = _channels(heads) * requests * tokens * (2 * 2)
    return _features(bytes=moved, resident=moved, steps=np.minimum(tokens, 16.0))


def _channels(heads: Column) -> Column:
    return 3.0 * _WIDTH * heads


_KERNELS: dict[str, tuple[tuple[str, ...], Callable[[Rows], dict[str, Column]]]] = {
    "state_chunk": (("chunk_kda",), _chunk),
    # the kernel of 12 heads does the convolution, too: 3.5 % more bytes, left out
    "state": (
        (
            *("fused_recurrent_kda_packed_decode", "kda_fused_decode"),
            *("fused_kda_decode_mtp_dspark", "fused_sigmoid_gating_delta_rule_update"),
        ),
        _step,
    ),
    "convolution": (("causal_conv1d_update",), _conv_step),
    "convolution_prefill": (("causal_conv1d_fn_qkv3",), _conv_prefill),
}
