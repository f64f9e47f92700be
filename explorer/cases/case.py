"""What a case file says, as types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hw.errors import MeshwrightError

Reading = int | float
Value = bool | int | float | str


class CaseError(MeshwrightError):
    """A case file that cannot be used."""


class Kind(StrEnum):
    """What a report is about."""

    MEMORY = "MEM"
    CAPACITY = "CAP"
    FITS = "OOM"
    LAYOUT = "LAY"
    PERFORMANCE = "PERF"
    CONFIGURATION = "CFG"


# Readings of a log that a question may take as they are. GiB of one rank (2^30 bytes), or counts.
READINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "total_gib": "memory of the GPU",
        "free_gib": "free before the weights load",
        "weights_gib": "what loading took",
        "left_gib": "free after the weights",
        "non_torch_gib": "what vLLM calls non-torch memory",
        "peak_gib": "what vLLM measured as the peak of a trial step",
        "graphs_gib": "what vLLM deducted for graphs",
        "captured_gib": "what the captured graphs took",
        "budget_gib": "all pools together",
        "pool_gib": "the KV pool",
        "kv_tokens": "token slots of a rank's KV pool",
        "state_slots": "slots of a rank's state pool, without the one for padding",
        "tokens_a_request": "tokens that a request holds",
        "dispatch_tokens": "rows that a rank may dispatch",
        "width": "values of a dispatched row",
        "experts": "routed experts of a layer, redundant ones included",
        "rank_tokens": "tokens of the busiest rank of a step",
        "ranks": "ranks that share a step",
        "logged_tokens": "the GPU KV cache size that vLLM logs",
        "block_tokens": "tokens of a block of vLLM's pool",
    }
)


@dataclass(frozen=True)
class Server:
    """A server that ran: its command and machine, and the clients it had. GiB, tokens, requests.

    `model`, `draft` and `precision` stand in for what the command names in a way that means nothing here;
    `shared_clones`: copies of the shared expert among the routed ones, where the log counts them.
    """

    command: str
    hardware: str = "h200"
    memory_gib: float | None = None
    model: str | None = None
    draft: str | None = None
    precision: str | None = None
    context: int | None = None
    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    accept_length: float | None = None
    shared_clones: int | None = None


@dataclass(frozen=True)
class Figure:
    """One reported figure and what predicts it.

    `printed_to`: the last place that the report prints. `of`: the server that is asked, `over` the one it is set
    against (the figure is then a ratio), `among` those of which one is preferred, by the least `by`. `missing`: which
    inputs the report does not say; nothing is held against such a figure.
    """

    quantity: str
    reported: Value
    printed_to: float = 0.0
    given: Mapping[str, Reading] = field(default_factory=lambda: MappingProxyType({}))
    of: str | None = None
    over: str | None = None
    among: tuple[str, ...] = ()
    by: str | None = None
    missing: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Case:
    """A public report. `date` as ISO text, empty where it is not known."""

    id: str
    kind: Kind
    title: str
    source: str
    date: str
    note: str
    servers: Mapping[str, Server]
    figures: tuple[Figure, ...]
