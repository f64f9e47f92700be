"""The parallel degrees that vLLM's flags mean, in this project's words.

A data-parallel rank is a whole attention TP group with its own scheduler and KV pool. The experts are cut over all of
them: whole experts with `--enable-expert-parallel`, slices of every expert without. Rules of vLLM 0.33.0,
`config/parallel.py` and `FusedMoEParallelConfig.make`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive


class All2All(StrEnum):
    """The exchanges between experts that the command line knows: `All2AllBackend` without the one set internally."""

    NAIVE = "naive"
    PPLX = "pplx"
    DEEPEP_HIGH_THROUGHPUT = "deepep_high_throughput"
    DEEPEP_LOW_LATENCY = "deepep_low_latency"
    DEEPEP_V2 = "deepep_v2"
    MORI_HIGH_THROUGHPUT = "mori_high_throughput"
    MORI_LOW_LATENCY = "mori_low_latency"
    MOONEP = "moonep"
    NIXL_EP = "nixl_ep"
    GATHER_SCATTER = "allgather_reducescatter"
    FLASHINFER_ALL2ALLV = "flashinfer_all2allv"
    FLASHINFER_TWO_SIDED = "flashinfer_nvlink_two_sided"
    FLASHINFER_ONE_SIDED = "flashinfer_nvlink_one_sided"


# Names that stand for another backend: the first two were removed, the third is an alias.
_STANDS_FOR: Final = {
    All2All.NAIVE: All2All.GATHER_SCATTER,
    All2All.PPLX: All2All.GATHER_SCATTER,
    All2All.FLASHINFER_ALL2ALLV: All2All.FLASHINFER_TWO_SIDED,
}
# Backends with which the rows of a TP group are spread over its ranks before the experts: `use_sequence_parallel_moe`.
_SPREAD_ROWS: Final = frozenset(All2All) - {All2All.MOONEP, All2All.FLASHINFER_TWO_SIDED, All2All.FLASHINFER_ALL2ALLV}
# Backends whose rows are batched by expert: `use_batched_dp_moe`.
BATCHED: Final = frozenset({All2All.DEEPEP_LOW_LATENCY, All2All.NIXL_EP})


@dataclass(frozen=True)
class ParallelFlags:
    """The flags of degrees and of the experts' exchange, with vLLM's defaults."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    pcp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    all2all: All2All = All2All.GATHER_SCATTER
    eplb: bool = False
    redundant_experts: int = 0

    def __post_init__(self) -> None:
        require_positive(
            tensor_parallel_size=self.tp,
            pipeline_parallel_size=self.pp,
            data_parallel_size=self.dp,
            prefill_context_parallel_size=self.pcp,
            decode_context_parallel_size=self.dcp,
        )
        require_not_negative(num_redundant_experts=self.redundant_experts)


class Degrees(NamedTuple):
    """The degrees of one deployment.

    `replicas` are whole engines that share nothing (data parallelism of a dense model); `attn_dp` groups of `attn_tp`
    ranks share their experts, which are cut `ep` ways whole and `moe_tp` ways inside. `dcp` lies within `attn_tp`
    (with `pcp` > 1 within both), and adds no GPU.
    """

    gpus: int
    replicas: int
    attn_dp: int
    attn_tp: int
    pp: int
    pcp: int
    dcp: int
    ep: int
    moe_tp: int


def all2all(name: str) -> All2All:
    """The backend that a value of `--all2all-backend` means. Raises `EngineRuleError` for an unknown one."""
    if name not in All2All.__members__.values():
        raise EngineRuleError(f"--all2all-backend {name!r} is unknown: choose one of {', '.join(All2All)}")
    return _STANDS_FOR.get(All2All(name), All2All(name))


def degrees(flags: ParallelFlags, *, experts: bool) -> Degrees:
    """The degrees that the flags mean for a model with `experts`, or for a dense one.

    Source: `ParallelConfig.__post_init__`, `FusedMoEParallelConfig.make`, `reconfigure_for_independent_dp_rank`.
    """
    ranks = flags.tp * flags.pcp * (flags.dp if experts else 1)
    whole = experts and flags.expert_parallel
    return Degrees(
        gpus=flags.tp * flags.pp * flags.pcp * flags.dp,
        replicas=1 if experts else flags.dp,
        attn_dp=flags.dp if experts else 1,
        attn_tp=flags.tp,
        pp=flags.pp,
        pcp=flags.pcp,
        dcp=flags.dcp,
        ep=ranks if whole else 1,
        moe_tp=ranks if experts and not whole else 1,
    )


def spreads_rows(flags: ParallelFlags) -> bool:
    """Whether the rows of a TP group are spread over its ranks before the experts, and gathered after them."""
    return flags.all2all in _SPREAD_ROWS and flags.expert_parallel and flags.tp > 1 and flags.dp > 1


def exchanges_rows(flags: ParallelFlags) -> bool:
    """Whether the experts' rows go through the all-to-all backend at all. Source: `use_all2all`."""
    return flags.dp > 1 or spreads_rows(flags) or (flags.expert_parallel and flags.pcp > 1)
