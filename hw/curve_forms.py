"""Which parameters of a curve are fitted to rows, and where they start: one line a kernel or exchange."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import equinox as eqx
from jaxtyping import Array

from hw.machine import Machine
from hw.work import CollectiveKind, Family


class Free(NamedTuple):
    """A parameter to be fitted: where it starts, and between which values it stays."""

    start: float
    least: float
    most: float


_SHARE: Final = Free(0.7, 0.01, 1.0)
_COMPUTE: Final = Free(0.5, 0.01, 1.0)
_LATENCY: Final = Free(8e-6, 5e-7, 1e-4)
_SHORT: Final = Free(1.5e-6, 5e-8, 3e-5)
_SHARPNESS: Final = Free(1.8, 1.0, 12.0)
# a repeated launch finds part of what it reads in the cache, which a step's does not: fitted, and left out of the curve
WARM: Final = {"cache": Free(0.6, 0.1, 2.0), "reuse": Free(0.6, 0.05, 1.0)}

_KERNEL: Final = {"bandwidth_efficiency": _SHARE, "flops_efficiency": _COMPUTE, "latency": _LATENCY}
_GROUPED: Final = {
    **_KERNEL,
    "cta_latency": Free(6e-7, 1e-8, 5e-6),
    "copy_bytes": Free(2.0, 0.05, 30.0),
    "sharpness": _SHARPNESS,
}
_MOVED: Final = {"bandwidth_efficiency": _SHARE, "latency": Free(3e-6, 2e-7, 1e-4)}
_STATE: Final = {"bandwidth_efficiency": _SHARE, "latency": _LATENCY, "step_latency": _SHORT}

# What is fitted, and what is set beforehand.
KERNELS: Final[Mapping[Family, Mapping[str, Free]]] = {
    Family.GEMM: {**_KERNEL, "step_latency": Free(3e-10, 1e-12, 5e-9), "sharpness": _SHARPNESS},
    Family.GEMM_HEADS: {**_KERNEL, "step_latency": Free(1e-9, 1e-12, 5e-9), "sharpness": _SHARPNESS},
    Family.GROUPED_GEMM: _GROUPED,
    Family.GROUPED_GEMM_PACKED: _GROUPED,
    Family.ATTENTION: {**_KERNEL, "split_latency": _SHORT, "cta_latency": Free(2.5e-6, 1e-7, 3e-5), **WARM},
    Family.ATTENTION_HEADS: {**_KERNEL, "sharpness": _SHARPNESS, **WARM},
    Family.ATTENTION_SPARSE: {"flops_efficiency": _COMPUTE, "latency": _LATENCY},
    Family.ATTENTION_PREFILL: {"flops_efficiency": _COMPUTE, "latency": Free(2e-5, 5e-7, 1e-4)},
    Family.INDEX: _KERNEL,
    Family.INDEX_PREFILL: {"flops_efficiency": _COMPUTE, "latency": _LATENCY},
    Family.STATE: {**_STATE, "copy_bytes": Free(5.0, 0.5, 20.0), **WARM},
    Family.STATE_CHUNK: {**_STATE, "flops_efficiency": Free(0.15, 0.01, 1.0), "cta_latency": _SHORT},
    Family.CONVOLUTION: {"bandwidth_efficiency": _SHARE, "latency": _LATENCY},
    Family.CONVOLUTION_PREFILL: {**_STATE, "step_latency": Free(3e-7, 1e-9, 5e-6)},
    Family.ELEMENTWISE: _MOVED,
    Family.COPY: _MOVED,
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

PROTOCOLS: Final = {
    "latency": Free(8e-6, 5e-7, 5e-5),
    "direct_efficiency": Free(0.01, 1e-4, 1.0),
    "middle_latency": Free(1e-6, 1e-8, 3e-5),
    "middle_efficiency": Free(0.4, 0.02, 1.0),
    "bulk_latency": Free(1.2e-5, 1e-7, 1e-4),
    "link_efficiency": Free(0.75, 0.1, 1.0),
}
_AMONG_MANY: Final = {
    **PROTOCOLS,
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
AMONG_MANY: Final = (
    CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_REDUCE
)  # fmt: skip
EXCHANGES: Final[Mapping[CollectiveKind, Mapping[str, Free]]] = {
    **dict.fromkeys(AMONG_MANY, _AMONG_MANY),
    CollectiveKind.SEND: PROTOCOLS,
    CollectiveKind.DISPATCH: _EXPERT_ROWS,
    CollectiveKind.COMBINE: _EXPERT_ROWS,
    CollectiveKind.COPY_GATHER: {"latency": Free(1e-5, 1e-6, 1e-4), "link_efficiency": Free(0.7, 0.02, 1.0)},
}
# over several hosts: what the NIC adds to the parameters of one host
HOSTS: Final = {"nic_latency": Free(2e-5, 1e-6, 1e-4), "nic_efficiency": Free(0.9, 0.1, 1.0)}


def tuned(machine: Machine, which: str, values: Mapping[str, Array | float], place: tuple[int, ...]) -> Machine:
    """The machine with other values in one place of its `curves` or its `exchange`."""
    names = list(values)
    curves = getattr(machine, which)
    changed = [getattr(curves, name).at[place].set(values[name]) for name in names]
    return eqx.tree_at(lambda m: [getattr(getattr(m, which), name) for name in names], machine, changed)
