"""What start-up comes to."""

from dataclasses import dataclass
from typing import Final

from explorer.engines.startup.parts import Parts
from layouts.serving.requests import Clamp


@dataclass(frozen=True)
class Given:
    """Readings that stand in for what would be computed, in bytes of one rank. None: computed.

    `free`: free before the weights; `weights`: what loading took; `left`: free after the weights; `pool`: bytes of the
    KV pool itself; `budget`: bytes of all pools.
    """

    free: int | None = None
    weights: int | None = None
    left: int | None = None
    budget: int | None = None
    pool: int | None = None


NOTHING: Final = Given()


@dataclass(frozen=True)
class Startup:
    """One rank after start-up, in bytes, tokens and requests.

    `budget` is what weights leave of the engine's share for pools. `kv_tokens` are those of one rank's pool,
    `group_tokens` those of its attention group; `admitted` requests of one group at most, as
    the engine prints; `running` of the asked length, by `clamp`; `longest` tokens of one
    request. `left` is free memory once the pools stand, of which `reserved` is spoken for (graphs, buffers),
    `reserved_high` at most.
    `logged_tokens` and `logged_concurrency` are the two figures that vLLM prints, which are no capacity.
    `refusal` says why it would not start, and what would do.
    """

    parts: Parts
    share: float
    share_source: str
    free: int
    weights: int
    budget: int
    state_slots: int | None
    slots_a_request: int
    state_bytes: int
    verify_bytes: int
    window_bytes: int
    draft_bytes: int
    kv_bytes: int
    kv_tokens: int
    group_tokens: int
    admitted: int
    running: int
    clamp: Clamp
    longest: int
    left: int
    reserved: int
    reserved_high: int
    groups: int
    logged_tokens: int | None = None
    logged_concurrency: float | None = None
    refusal: str | None = None

    @property
    def starts(self) -> bool:
        return self.refusal is None

    @property
    def running_instance(self) -> int:
        """Requests of all attention groups."""
        return self.running * self.groups
