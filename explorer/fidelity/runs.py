"""A measured run as its source states it, and a prediction of one quantity of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Interval:
    """A prediction and the ends of its 80 % range: seconds, or the SI unit of the quantity."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pool:
    """Equal workers that serve one phase, or both. None is what the source leaves blank.

    `batch`: requests on one attention-DP rank. `moe_tp`, `moe_ep`: how the experts of one worker are cut.
    """

    workers: int | None = None
    tp: int | None = None
    pp: int | None = None
    attention_dp: int | None = None
    moe_tp: int | None = None
    moe_ep: int | None = None
    batch: int | None = None

    @property
    def worker_gpus(self) -> int | None:
        """GPUs of one worker; a degree that is blank cuts nothing, but tp must be stated."""
        return None if self.tp is None else self.tp * (self.pp or 1) * (self.attention_dp or 1)

    @property
    def gpus(self) -> int | None:
        """GPUs of the pool; None where the source says too little."""
        each = self.worker_gpus
        return None if each is None or self.workers is None else each * self.workers


def mean_share(shortest: float) -> float:
    """Mean of a uniform draw between a share of the longest, `shortest`, and the longest, over the longest."""
    return (1.0 + shortest) / 2.0


@dataclass(frozen=True)
class Run:
    """One public measurement. Tokens are counts, `measured` is in seconds or the SI unit of each quantity.

    `model` is a preset or a path, `stated_model` what the source calls it; `hardware` is a chip. An aggregated run has
    `pool`, a disaggregated one `prefill` and `decode`, one that states its layout as text has `layout` and
    `stated_gpus`. `shortest`: the least length that the benchmark draws, over the one that it states, which is the
    longest. `verify_width` and `accept_length` are None where speculation is unknown. `repaired` says what was
    read otherwise than stated, and why.
    """

    id: str
    source: str
    model: str
    stated_model: str
    hardware: str
    engine: str = "other"
    engine_version: str | None = None
    gemm: str | None = None
    moe: str | None = None
    kv: str | None = None
    mode: str = "agg"
    phase: str = "serve"
    input_tokens: int | None = None
    output_tokens: int | None = None
    context: int | None = None
    concurrency: int | None = None
    pool: Pool | None = None
    prefill: Pool | None = None
    decode: Pool | None = None
    layout: str | None = None
    stated_gpus: int | None = None
    verify_width: int | None = None
    accept_length: float | None = None
    shortest: float = 1.0
    measured: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    repaired: str | None = None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that the source states."""
        return tuple(pool for pool in (self.pool, self.prefill, self.decode) if pool is not None)

    @property
    def gpus(self) -> int | None:
        """GPUs of the whole run; None where the source says too little."""
        if self.stated_gpus is not None or not self.pools:
            return self.stated_gpus
        each = [pool.gpus for pool in self.pools]
        return None if None in each else sum(g for g in each if g is not None)

    @property
    def mean_share(self) -> float:
        """Mean length of a uniform draw between the shortest and the stated one, over the stated one."""
        return mean_share(self.shortest)

    @property
    def unstated(self) -> bool:
        """Whether a pool says neither how many workers it has nor what each of them runs."""
        apart = tuple(pool for pool in (self.prefill, self.decode) if pool is not None)
        return any(pool.workers is None and pool.batch is None for pool in apart)

    @property
    def configuration(self) -> tuple[object, ...]:
        """What is served, whatever the load: runs of one configuration speculate all or none."""
        pools = tuple(replace(pool, workers=None, batch=None) for pool in self.pools)
        served = (self.model, self.hardware, self.engine, self.gemm, self.moe, self.kv, self.mode, self.layout)
        return (*served, *pools)

    @property
    def cut(self) -> tuple[object, ...]:
        """What tells one layout from another."""
        return (self.layout, self.mode, *(self.pools))

    @property
    def inputs(self) -> tuple[object, ...]:
        """Everything that a prediction may look at. Equal inputs are repetitions of one run.

        The engine's version is left out: it is blank in a quarter of the rows, and no prediction depends on it.
        """
        return tuple(getattr(self, name) for name in _INPUTS)


_NO_INPUT: Final = frozenset({"id", "source", "stated_model", "engine_version", "measured", "repaired"})
_INPUTS: Final = tuple(f.name for f in fields(Run) if f.name not in _NO_INPUT)
