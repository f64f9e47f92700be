"""Which parameters of a curve are fitted to which table, and where they start: one line a kernel or exchange."""

from collections.abc import Mapping
from typing import Final

from hw.fitting import Free
from hw.work import CollectiveKind, Family

_SHARE: Final = Free(0.7, 0.01, 1.0)
_COMPUTE: Final = Free(0.5, 0.01, 1.0)
_LATENCY: Final = Free(8e-6, 5e-7, 1e-4)
_SHORT: Final = Free(1.5e-6, 5e-8, 3e-5)
_SHARPNESS: Final = Free(1.8, 1.0, 12.0)
# a repeated launch finds part of what it reads in the cache, which a step's does not: fitted, and left out of the curve
_WARM: Final = {"cache": Free(0.6, 0.1, 2.0), "reuse": Free(0.6, 0.05, 1.0)}

_KERNEL: Final = {"bandwidth_efficiency": _SHARE, "flops_efficiency": _COMPUTE, "latency": _LATENCY}
_GROUPED: Final = {
    **_KERNEL,
    "cta_latency": Free(6e-7, 1e-8, 5e-6),
    "copy_bytes": Free(2.0, 0.05, 30.0),
    "sharpness": _SHARPNESS,
}
_STATE: Final = {"bandwidth_efficiency": _SHARE, "latency": _LATENCY, "step_latency": _SHORT}

# What is fitted, and what is set beforehand.
KERNELS: Final[Mapping[Family, Mapping[str, Free]]] = {
    Family.GEMM: {**_KERNEL, "step_latency": Free(3e-10, 1e-12, 5e-9), "sharpness": _SHARPNESS},
    Family.GEMM_HEADS: {**_KERNEL, "step_latency": Free(1e-9, 1e-12, 5e-9), "sharpness": _SHARPNESS},
    Family.GROUPED_GEMM: _GROUPED,
    Family.GROUPED_GEMM_PACKED: _GROUPED,
    Family.ATTENTION: {**_KERNEL, "split_latency": _SHORT, "cta_latency": Free(2.5e-6, 1e-7, 3e-5), **_WARM},
    Family.ATTENTION_HEADS: {**_KERNEL, "sharpness": _SHARPNESS, **_WARM},
    Family.ATTENTION_SPARSE: {"flops_efficiency": _COMPUTE, "latency": _LATENCY},
    Family.ATTENTION_PREFILL: {"flops_efficiency": _COMPUTE, "latency": Free(2e-5, 5e-7, 1e-4)},
    Family.INDEX: _KERNEL,
    Family.INDEX_PREFILL: {"flops_efficiency": _COMPUTE, "latency": _LATENCY},
    Family.STATE: {**_STATE, "copy_bytes": Free(5.0, 0.5, 20.0), **_WARM},
    Family.STATE_CHUNK: {**_STATE, "flops_efficiency": Free(0.15, 0.01, 1.0), "cta_latency": _SHORT},
    Family.CONVOLUTION: {"bandwidth_efficiency": _SHARE, "latency": _LATENCY},
    Family.CONVOLUTION_PREFILL: {**_STATE, "step_latency": Free(3e-7, 1e-9, 5e-6)},
}
_ADDS: Final = {"sharpness": 1.0}
FIXED: Final[Mapping[Family, Mapping[str, float]]] = {
    # whole waves and this sharpness predict held-out rows as well as others do, and the serving trace of article 000
    # (its `fit` rows) better
    Family.ATTENTION: {"sharpness": 1.5, "waves": 1.0},
    Family.ATTENTION_SPARSE: {"sharpness": 2.0},
    Family.ATTENTION_PREFILL: {"sharpness": 2.0},
    Family.INDEX: {"sharpness": 2.0},
    Family.INDEX_PREFILL: {"sharpness": 2.0},
    Family.STATE: _ADDS,
    Family.STATE_CHUNK: _ADDS,
    Family.CONVOLUTION: _ADDS,
    Family.CONVOLUTION_PREFILL: _ADDS,
}

_PROTOCOLS: Final = {
    "latency": Free(8e-6, 5e-7, 5e-5),
    "direct_efficiency": Free(0.01, 1e-4, 1.0),
    "middle_latency": Free(1e-6, 1e-8, 3e-5),
    "middle_efficiency": Free(0.4, 0.02, 1.0),
    "bulk_latency": Free(1.2e-5, 1e-7, 1e-4),
    "link_efficiency": Free(0.75, 0.1, 1.0),
}
_AMONG_MANY: Final = {
    **_PROTOCOLS,
    "hop_latency": Free(1e-6, 1e-8, 1e-5),
    "home": Free(0.4, 0.01, 2.0),
    "fill_latency": Free(2e-6, 1e-8, 5e-5),
}
_EXPERT_ROWS: Final = {
    "latency": Free(1e-5, 1e-6, 1e-4),
    "round_latency": Free(2e-6, 1e-8, 2e-5),
    "link_efficiency": Free(0.55, 0.05, 1.0),
    "row_latency": Free(1e-6, 1e-8, 1e-4),
}
EXCHANGES: Final[Mapping[CollectiveKind, Mapping[str, Free]]] = {
    CollectiveKind.ALL_GATHER: _AMONG_MANY,
    CollectiveKind.REDUCE_SCATTER: _AMONG_MANY,
    CollectiveKind.ALL_TO_ALL: _AMONG_MANY,
    CollectiveKind.ALL_REDUCE: _AMONG_MANY,
    CollectiveKind.SEND: _PROTOCOLS,
    CollectiveKind.DISPATCH: _EXPERT_ROWS,
    CollectiveKind.COMBINE: _EXPERT_ROWS,
}
# over several hosts: what the NIC adds to the parameters of one host
HOSTS: Final = {"nic_latency": Free(2e-5, 1e-6, 1e-4), "nic_efficiency": Free(0.9, 0.1, 1.0)}
