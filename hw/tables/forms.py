"""Which table answers which question, in whose columns: sizes that are interpolated, and those that must be met.

The words are the tables': an engine's kernel, the format that it names, the one model whose shape was tabled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

Columns = dict[str, np.ndarray]


class Kind(StrEnum):
    """Problems that tables are asked for, each with the sizes that state it.

    Formats are those of weights (`layouts.tensor.FORMATS`), of attention those of the KV cache, of linear attention
    those of its state; an exchange has its kind (`hw.work.CollectiveKind`) instead.
    """

    GEMM = "gemm"
    ABSORBED = "absorbed"
    GROUPED = "grouped"
    MLA_DECODE = "mla_decode"
    MLA_PREFILL = "mla_prefill"
    HEADS_DECODE = "heads_decode"
    HEADS_PREFILL = "heads_prefill"
    STATE = "state"
    STATE_CHUNK = "state_chunk"
    CONVOLUTION = "convolution"
    CONVOLUTION_PREFILL = "convolution_prefill"
    LIBRARY = "library"
    OWN_ALL_REDUCE = "own_all_reduce"


def _as_it_is(columns: Columns) -> Columns:
    return columns


@dataclass(frozen=True)
class Form:
    """A table: `folder` under the chip's, `file`, and how a question becomes one of its rows.

    `axes` (size: column) are interpolated one after the other, `exact` must be met, `given` are sizes that all rows
    share. `format`: the column, and its words by the question's. `derive` adds columns that are not in the file
    (`needs`: what it reads). `together`: a row times several ops of a layer. `engine`: whose folder it is, where it is
    not the serving engine's. `wider`: a format than which one of fewer bytes is no slower, unless software is missing.
    """

    folder: str
    file: str
    axes: Mapping[str, str]
    format: tuple[str, Mapping[str, str]]
    exact: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, float] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    derive: Callable[[Columns], Columns] = _as_it_is
    together: bool = False
    engine: str | None = None
    wider: Mapping[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> frozenset[str]:
        """What a question must state."""
        return frozenset({*self.axes, *self.exact, *self.given})


def _tokens(columns: Columns) -> Columns:
    """Tokens of context: the one that is computed and those before it."""
    return {**columns, "tokens": columns["isl"] + columns["step"]}


def _bytes(columns: Columns) -> Columns:
    width = np.where(columns["nccl_dtype"] == "half", 2, 1)
    return {**columns, "bytes": columns["message_size"] * width}


def _expanded(columns: Columns) -> Columns:
    """Rows without those of a kernel that attends to latents: prompts are computed with expanded heads, in less than a
    third of the arithmetic."""
    other = columns["kernel_source"] == "flash_attention"
    return {**columns, "kv_cache_dtype": np.where(other, "", columns["kv_cache_dtype"])}


def _absorbed(columns: Columns) -> Columns:
    """The two halves of kv_b of the one tabled model: 128 values of a head into its latent of 512, and back."""
    before = columns["op_name"] == "mla_gen_pre"
    return {**columns, "inner": np.where(before, 128, 512), "columns": np.where(before, 512, 128)}


_SHORT, _FUSED = "convolution", "state"


def _kernels(decode: bool) -> Callable[[Columns], Columns]:
    """Rows of the other phase become no kernel's."""

    def derive(columns: Columns) -> Columns:
        kernel = np.where(np.char.startswith(columns["kernel_source"].astype(str), "causal_conv1d"), _SHORT, _FUSED)
        ours = (columns["phase"] != "context") == decode
        return {**columns, "kernel": np.where(ours, kernel, "")}

    return derive


def _linear(kernel: str, decode: bool) -> Form:
    return Form(
        "kda", "kda_perf.parquet",
        axes={"heads": "num_v_heads", "tokens": "seq_len", "requests": "batch_size"},
        format=("kernel", {"fp32": kernel}),
        exact={"width": "head_v_dim", "taps": "d_conv"},
        needs=("kernel_source", "phase"),
        derive=_kernels(decode),
    )  # fmt: skip


_KV: Final = ("kv_cache_dtype", {"bf16": "bfloat16", "fp8": "fp8"})
_NARROW_KV: Final = {"fp8": "bf16"}
_DECODE: Final = {"requests": "batch_size", "tokens": "tokens"}
_PREFILL: Final = {"requests": "batch_size", "tokens": "isl"}
# `reach`: mean keys of a row over those of a prompt that starts with the chunk; tables have no prefix
_WHOLE: Final = {"reach": 1.0}
_LATENT: Final = {"latent": 512.0, "rope": 64.0}
_PAIRS: Final = {"kv_heads": "num_key_value_heads", "width": "head_dim", "window": "window_size"}

FORMS: Final[Mapping[Kind, Form]] = {
    Kind.GEMM: Form(
        "gemm", "gemm_perf.parquet",
        axes={"inner": "k", "columns": "n", "rows": "m"},
        format=("gemm_dtype", {"bf16": "bfloat16", "fp8": "fp8_block", "nvfp4": "nvfp4"}),
    ),
    Kind.ABSORBED: Form(
        "mla_bmm", "mla_bmm_perf.parquet",
        axes={"heads": "num_heads", "rows": "num_tokens"},
        format=("bmm_dtype", {"bf16": "bfloat16"}),
        exact={"inner": "inner", "columns": "columns"},
        needs=("op_name",),
        derive=_absorbed,
    ),
    Kind.GROUPED: Form(
        "moe", "moe_perf.parquet",
        axes={"tokens": "num_tokens"},
        format=("moe_dtype", {
            "bf16": "bfloat16", "fp8": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo", "mxfp4": "w4a8_mxfp4_mxfp8",
        }),
        exact={
            "width": "hidden_size", "intermediate": "inter_size", "topk": "topk", "experts": "num_experts",
            "tp": "moe_tp_size", "ep": "moe_ep_size", "uneven": "uneven",
        },
        # the tabled kernel gathers its rows and sums them after, so that none may have travelled; its choices are dealt
        # out evenly, which is unlike any traffic until all experts have rows anyhow
        given={"travelled": 0.0, "touched": 1.0},
        needs=("distribution",),
        derive=lambda columns: {**columns, "uneven": (columns["distribution"] != "balanced").astype(float)},
        together=True,
    ),
    Kind.MLA_DECODE: Form(
        "mla", "generation_mla_perf.parquet",
        axes={"heads": "num_heads", **_DECODE}, format=_KV, given={**_LATENT, "verify": 1.0},
        needs=("isl", "step"), derive=_tokens, wider=_NARROW_KV,
    ),
    Kind.MLA_PREFILL: Form(
        "mla", "context_mla_perf.parquet",
        axes={"heads": "num_heads", **_PREFILL}, format=_KV,
        given={**_LATENT, "nope": 128.0, "value": 128.0, **_WHOLE},
        needs=("kernel_source",), derive=_expanded, wider=_NARROW_KV,
    ),
    Kind.HEADS_DECODE: Form(
        "attention", "generation_attention_perf.parquet",
        axes={"heads": "num_heads", **_DECODE}, format=_KV, exact=_PAIRS, given={"verify": 1.0},
        needs=("isl", "step"), derive=_tokens, wider=_NARROW_KV,
    ),
    Kind.HEADS_PREFILL: Form(
        "attention", "context_attention_perf.parquet",
        axes={"heads": "num_heads", **_PREFILL}, format=_KV, exact=_PAIRS, given=_WHOLE,
        needs=("attn_dtype",), wider=_NARROW_KV,
    ),
    Kind.STATE: _linear(_FUSED, decode=True),
    Kind.STATE_CHUNK: _linear(_FUSED, decode=False),
    Kind.CONVOLUTION: _linear(_SHORT, decode=True),
    Kind.CONVOLUTION_PREFILL: _linear(_SHORT, decode=False),
    Kind.LIBRARY: Form(
        "comm", "nccl_perf.parquet",
        axes={"bytes": "bytes"},
        exact={"ranks": "num_gpus"},
        format=("op_name", {
            "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "all_reduce",
            "all_to_all": "alltoall",
        }),
        needs=("nccl_dtype", "message_size"), derive=_bytes, engine="nccl",
    ),
    Kind.OWN_ALL_REDUCE: Form(
        "comm", "custom_allreduce_perf.parquet",
        axes={"bytes": "message_size"},
        exact={"ranks": "num_gpus"},
        format=("op_name", {"all_reduce": "all_reduce"}),
        needs=("kernel_source",),
    ),
}  # fmt: skip
