"""What a start-up log says: events of ranks, their figures with the interval that a printed digit stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from hw.errors import MeshwrightError


class LogError(MeshwrightError):
    """A log that cannot be read, or in which no engine starts."""


class Engine(StrEnum):
    """A serving engine whose logs are read."""

    SGLANG = "sglang"
    VLLM = "vllm"


class Event(StrEnum):
    """What a line tells of; `patterns.toml` says of each by which words it is known, and what its figures are.

    `..._BEGIN`: memory that was free before; `..._END`: what it took, and what is free after.
    """

    SERVER_ARGS = "server_args"
    ENGINE_CONFIG = "engine_config"
    VERSION = "version"
    DISTRIBUTED_END = "distributed_end"
    LOAD_BEGIN = "load_begin"
    LOAD_END = "load_end"
    SHARED_EXPERT = "shared_expert"
    DEEPEP_BUFFER = "deepep_buffer"
    STATE_POOL = "state_pool"
    REPLAY_POOL = "replay_pool"
    KV_POOL = "kv_pool"
    KV_RESERVED = "kv_reserved"
    KV_RESIZED = "kv_resized"
    SWA_POOL = "swa_pool"
    POOL_SIZES = "pool_sizes"
    POOL_BUDGET = "pool_budget"
    POOL_END = "pool_end"
    GRAPH_BEGIN = "graph_begin"
    GRAPH_END = "graph_end"
    GRAPH_SIZES = "graph_sizes"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    CAPPED = "capped"
    PROFILE = "profile"
    PROFILE_BUDGET = "profile_budget"
    GRAPH_ESTIMATE = "graph_estimate"
    GRAPH_POOL = "graph_pool"
    KV_AVAILABLE = "kv_available"
    KV_SIZE = "kv_size"
    CONCURRENCY = "concurrency"
    BLOCKS = "blocks"
    INIT_END = "init_end"
    ERROR = "error"


@dataclass(frozen=True)
class Reading:
    """A printed figure: what it was rounded from lies within `half_width` of `value` (bytes, seconds, or a ratio)."""

    value: float
    half_width: float = 0.0

    def __add__(self, other: "Reading") -> "Reading":
        return Reading(self.value + other.value, self.half_width + other.half_width)

    def __sub__(self, other: "Reading") -> "Reading":
        return Reading(self.value - other.value, self.half_width + other.half_width)

    @property
    def low(self) -> float:
        """Least value that is printed so."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """Greatest value that is printed so."""
        return self.value + self.half_width

    def holds(self, value: float) -> bool:
        """Whether `value` would have been printed so."""
        return self.low <= value <= self.high


Value = Reading | int | str


@dataclass(frozen=True)
class Rank:
    """Who wrote a line, by what the line says of it; all None for a process without a rank, and for a single GPU.

    `cp`: context parallel (SGLang's ATTN_CP, vLLM's PCP). `worker`: vLLM's `rank=`, the GPU's number in its engine.
    `pid`: only of a worker that names neither.
    """

    dp: int | None = None
    pp: int | None = None
    cp: int | None = None
    dcp: int | None = None
    moe_dp: int | None = None
    tp: int | None = None
    ep: int | None = None
    worker: int | None = None
    pid: int | None = None

    @property
    def named(self) -> bool:
        """Whether the line says of its writer which rank it is."""
        return self != Rank()

    @property
    def order(self) -> tuple[int, ...]:
        """To sort by: data parallel first."""
        return tuple(-1 if (number := getattr(self, field.name)) is None else number for field in fields(self))

    def __str__(self) -> str:
        parts = [(field.name, getattr(self, field.name)) for field in fields(self)]
        words = {"worker": "rank ", "pid": "pid "}
        said = [f"{words.get(name, name.upper())}{number}" for name, number in parts if number is not None]
        return " ".join(said) or "no rank"


@dataclass(frozen=True)
class Entry:
    """One event of one rank. `line`: from 1. `seconds`: on the log's own clock, which names no time zone (vLLM's no
    year): only differences mean something. `values`: by the names in `patterns.toml`."""

    event: Event
    rank: Rank
    line: int
    seconds: float | None
    values: Mapping[str, Value]

    def figure(self, name: str) -> Reading | None:
        """The figure of that name, None if the line has none."""
        found = self.values.get(name)
        return found if isinstance(found, Reading) else None

    def count(self, name: str) -> int | None:
        """The whole number of that name (tokens, slots, requests), None if the line has none."""
        found = self.values.get(name)
        return found if isinstance(found, int) else None

    def text(self, name: str) -> str | None:
        """The word or sentence of that name, None if the line has none."""
        found = self.values.get(name)
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Log:
    """One start of an engine (None: nothing but errors that either may print). `launch`: the arguments that it prints,
    raw. `lines`: of the file. `unread`: lines that name an event but whose figures could not be read (cut short, of
    another format, or more than a start can tell)."""

    engine: Engine | None
    version: str | None
    entries: tuple[Entry, ...]
    launch: str | None
    lines: int
    unread: int
    notes: tuple[str, ...]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Ranks that wrote anything that was read, sorted; the nameless one only if there is no other."""
        found = {entry.rank for entry in self.entries}
        named = [rank for rank in found if rank.named]
        return tuple(sorted(named or found, key=lambda rank: rank.order))

    def of(self, event: Event, rank: Rank | None = None) -> tuple[Entry, ...]:
        """Entries of an event in the order of the log, of one rank if it is given."""
        return tuple(e for e in self.entries if e.event is event and (rank is None or e.rank == rank))

    @property
    def ready(self) -> bool:
        """Whether the engine says that it is ready to serve."""
        return bool(self.of(Event.INIT_END))

    @property
    def errors(self) -> tuple[Entry, ...]:
        """What went wrong, in the order of the log."""
        return self.of(Event.ERROR)
