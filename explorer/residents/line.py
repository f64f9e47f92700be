"""What one line of the ledger is."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from layouts.expression import Expr


class Group(StrEnum):
    """Where a line's bytes come out of."""

    START = "start"  # before the weights
    WEIGHTS = "weights"
    STAGING = "staging"  # buffers of gathered weights
    STATE = "state"  # pools sized by request slots
    KV = "kv"  # the pool that takes what is left
    RESERVE = "reserve"  # inside (1 - mem_fraction)


@dataclass(frozen=True)
class Holding:
    """What an engine keeps beside the model as published.

    `redundant_experts`: second copies of routed experts, over all ranks of a layer. `whole_embedding`: the embedding is
    cut over the attention group even where the head is cut over more ranks (SGLang with DP attention and without
    `--enable-dp-lm-head`). `dense_ranks`: ranks that share the dense MLPs, where they are not those of the attention
    group (SGLang with DP attention: all of tp, or `--moe-dense-tp-size`). `shared_clones`: shared experts among the
    routed ones, cut like them (SGLang 0.4.4 to 0.4.6 cloned it `--n-share-experts-fusion` times). `exchange_buffer`: an
    exchange of rows keeps DeepEP's low-latency buffer; other backends have buffers of their own.
    """

    redundant_experts: int = 0
    whole_embedding: bool = False
    dense_ranks: int | None = None
    shared_clones: int = 1
    exchange_buffer: bool = True


AS_PUBLISHED: Final = Holding()


@dataclass(frozen=True)
class Line:
    """`size` in bytes on the GPU of the heaviest pipeline stage. `low` and `high` scale an estimate to its range."""

    name: str
    group: Group
    size: Expr
    provenance: str
    exact: bool = True
    low: float = 1.0
    high: float = 1.0
