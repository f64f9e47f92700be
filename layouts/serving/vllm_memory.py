"""What vLLM leaves for KV on a GPU: its share of the memory less what it has measured by then.

Rules of vLLM 0.33.0, `v1/worker/gpu_worker.py` and `utils.py`. What the engine measures while it starts (weights as
loaded, communicators, the peak of a trial step, a trial graph capture) cannot be told from flags: it is an input here.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

_GIB: Final = 2**30
# `CacheConfig.gpu_memory_utilization`; 0.9 in the logs of earlier versions, so take the flag from the log where it is.
DEFAULT_UTILISATION: Final = 0.92
# From this version on the estimate of a trial graph capture is deducted unless
# VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0; `GPUWorker.determine_available_memory` says so when it starts.
GRAPHS_DEDUCTED_FROM: Final = (0, 21, 0)
# Bytes left over by the KV sizes that the engine suggests after start-up: `GPUWorker.compile_or_warm_up_model`.
SUGGESTION_MARGIN: Final = 150 * 2**20


@dataclass(frozen=True)
class Measured:
    """What vLLM measures on one GPU, in bytes.

    `free` is what nothing else holds before the engine starts (None: all of `total`); `weights` and `non_torch` are
    what it consumes for good, `peak` the transient peak of a trial step on top of it, `graphs` the graphs' estimate.
    """

    total: int
    weights: int
    non_torch: int = 0
    peak: int = 0
    graphs: int = 0
    free: int | None = None

    def __post_init__(self) -> None:
        require_positive(total=self.total)
        require_not_negative(weights=self.weights, non_torch=self.non_torch, peak=self.peak, graphs=self.graphs)
        if not 0 <= self.available <= self.total:
            raise EngineRuleError(f"{self.available} B are free of {self.total} B: give what was free at start-up")

    @property
    def available(self) -> int:
        """Bytes free before the engine starts."""
        return self.total if self.free is None else self.free

    @property
    def consumed(self) -> int:
        """Bytes that the log calls consumed memory: weights and what is not torch's."""
        return self.weights + self.non_torch


class Budget(NamedTuple):
    """Bytes of one GPU: the engine's share, what of it is left for KV, and what nothing has claimed outside of it.

    Graphs that are not deducted are claimed outside; a negative `outside` is an out-of-memory error while they are
    captured, and zero leaves nothing for what grows later (fragments, larger communication buffers).
    """

    requested: int
    kv: int
    outside: int


def requested_bytes(total: int, utilisation: float = DEFAULT_UTILISATION) -> int:
    """Bytes that the engine takes as its share of a GPU's `total`. Source: `request_memory`."""
    require_positive(total=total)
    _require_fraction(utilisation)
    return math.ceil(total * utilisation)


def kv_budget(measured: Measured, utilisation: float = DEFAULT_UTILISATION, *, deduct_graphs: bool = True) -> Budget:
    """Bytes for KV: the share less weights, what is not torch's, the transient peak and the graphs' estimate.

    `deduct_graphs` is false before 0.21.0 or with VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0. With
    `--kv-cache-memory-bytes` the engine measures none of this and takes the given bytes.
    Raises `EngineRuleError` where less is free than the share. Source: `determine_available_memory`.
    """
    requested = requested_bytes(measured.total, utilisation)
    if measured.available < requested:
        fits = math.floor(measured.available / measured.total * 100) / 100
        raise EngineRuleError(
            f"--gpu-memory-utilization {utilisation} asks for {requested / _GIB:.2f} GiB, but "
            f"{measured.available / _GIB:.2f} GiB are free at start-up: set it to {fits} or free the GPU"
        )
    graphs = measured.graphs if deduct_graphs else 0
    kv = requested - measured.consumed - measured.peak - graphs
    return Budget(requested, kv, measured.available - requested - (measured.graphs - graphs))


def suggested_kv_bytes(measured: Measured, graphs: int, utilisation: float = DEFAULT_UTILISATION) -> tuple[int, int]:
    """The two `--kv-cache-memory` that the engine suggests once it has captured `graphs` bytes of graphs.

    Within its share, and up to all that was free. The engine counts the graphs twice, as estimated in the peak and as
    captured, and leaves 150 MiB. Source: `compile_or_warm_up_model`.
    """
    require_not_negative(graphs=graphs)
    rest = measured.consumed + measured.peak + measured.graphs + graphs + SUGGESTION_MARGIN
    return requested_bytes(measured.total, utilisation) - rest, measured.available - rest


def _require_fraction(utilisation: float) -> None:
    if not 0 < utilisation <= 1:
        raise EngineRuleError(f"--gpu-memory-utilization is {utilisation}: give a fraction above 0 and at most 1")
