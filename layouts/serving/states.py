"""State slots of linear-attention layers: how many a request holds, and how large the pool is.

A pool of N slots is allocated with N + 1: the last is a sink for padded rows. Rules of SGLang 0.5.23.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

# Share of state over KV where the command gives none.
DEFAULT_STATE_RATIO: Final = 0.9


class StateCache(StrEnum):
    """How the prefix cache keeps states: the values of `--mamba-radix-cache-strategy`, and no prefix cache at all."""

    OFF = "off"
    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


def tracking_slots(cache: StateCache, *, overlap: bool = True) -> int:
    """Slots in which a running request notes its state at chunk borders: two where steps overlap, one if lazy.

    Source: SGLang 0.5.23, `get_mamba_tracking_slots`. Raises `EngineRuleError` for lazy slots without overlap.
    """
    if cache in (StateCache.OFF, StateCache.NO_BUFFER):
        return 0
    if cache is StateCache.EXTRA_BUFFER_LAZY:
        if not overlap:
            raise EngineRuleError(
                f"{cache} needs the overlap schedule: drop --disable-overlap-schedule, or take extra_buffer"
            )
        return 1
    return 2 if overlap else 1


def state_slots_a_request(cache: StateCache, *, overlap: bool = True, skip_decode_lock: bool = False) -> int:
    """State slots that the engine counts for each running request when it caps them.

    One without a prefix cache; else three (its state, what the cache keeps, a copy) and the tracking slots.
    `skip_decode_lock` (SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1) frees one, but not without tracking slots. Speculation does
    not enter: its intermediate states are kept apart. Pipeline stages run without overlap.
    Source: SGLang 0.5.23, `_calculate_mamba_ratio`.
    """
    if cache is StateCache.OFF:
        return 1
    tracking = tracking_slots(cache, overlap=overlap)
    return 3 + tracking - (skip_decode_lock and tracking > 0)


@dataclass(frozen=True)
class StateDemand:
    """What a slot takes on a rank, in bytes; under pipeline parallelism on the stage with the most such layers.

    `slot_bytes`: convolution and recurrent state of all layers. `ring_bytes_a_slot`: further bytes of each slot (a KDA
    replay ring, a draft's own state). `fixed_bytes`: scratch that does not grow with slots (a GDN replay ring for the
    running requests). `verify_width`: intermediate states that each request keeps while a step is verified, as many as
    rows verified; 0 without speculation, with ReplaySSM and on a prefill server, which keep none.
    """

    slot_bytes: int
    ring_bytes_a_slot: int = 0
    fixed_bytes: int = 0
    verify_width: int = 0
    slots_a_request: int = 1

    def __post_init__(self) -> None:
        require_positive(slot_bytes=self.slot_bytes, slots_a_request=self.slots_a_request)
        require_not_negative(
            ring_bytes_a_slot=self.ring_bytes_a_slot, fixed_bytes=self.fixed_bytes, verify_width=self.verify_width
        )
        if self.fixed_bytes and self.verify_width:
            raise EngineRuleError(
                f"{self.fixed_bytes} B of replay scratch replace intermediate states: set verify_width 0 with ReplaySSM"
            )


class StatePool(NamedTuple):
    """Usable `slots` of a rank, the `bytes` of one more than them, and those deducted for intermediate states."""

    slots: int
    bytes: int
    intermediate_bytes: int

    @property
    def deducted(self) -> int:
        """Bytes that the KV pool does not get."""
        return self.bytes + self.intermediate_bytes


def state_pool(
    rest_bytes: float,
    demand: StateDemand,
    *,
    ratio: float = DEFAULT_STATE_RATIO,
    max_slots: int | None = None,
    max_running: int | None = None,
    attn_dp: int = 1,
    prefix_cache: bool = True,
) -> StatePool:
    """The state pool of a rank, and what it takes from `rest_bytes`, the share of pools before KV is sized.

    `max_slots` and `max_running` are those of the whole server; each attention group has its part. Slots given count
    as they are; else, without a prefix cache and with a limit on requests, one slot each; else the pool and its
    intermediate states take ratio / (1 + ratio) of the rest. An intermediate state counts as a whole slot, convolution
    included, for the requests that can run and for one sink; what is allocated is less where windows overlap.
    Source: SGLang 0.5.23, `_handle_max_mamba_cache`. Raises `EngineRuleError` where no slot is left.
    """
    require_positive(attn_dp=attn_dp)
    if demand.verify_width and max_running is None:
        raise EngineRuleError("speculation sizes its states by max_running: give it (the engine's default is 48)")
    running = None if max_running is None else max(1, max_running // attn_dp)
    if max_slots is not None:
        slots = max_slots // attn_dp
    elif not prefix_cache and running is not None:
        slots = running
    else:
        slots = _slots_by_ratio(rest_bytes, demand, ratio)
    if slots < 1:
        raise EngineRuleError(
            f"{rest_bytes / 2**30:.2f} GiB leave no state slot of {demand.slot_bytes / 2**20:.1f} MiB: raise the "
            "memory fraction or the ratio, verify fewer rows, or use more GPUs"
        )
    whole = (slots + 1) * (demand.slot_bytes + demand.ring_bytes_a_slot) + demand.fixed_bytes
    if not demand.verify_width or running is None:
        return StatePool(slots, whole, 0)
    verified = slots if max_slots is None and not prefix_cache else min(running, slots // demand.slots_a_request)
    return StatePool(slots, whole, demand.slot_bytes * (verified + 1) * demand.verify_width)


def _slots_by_ratio(rest_bytes: float, demand: StateDemand, ratio: float) -> int:
    """Slots N such that N + 1 slots and the intermediate states of N / slots_a_request + 1 requests fill the share."""
    if ratio <= 0:
        raise EngineRuleError(f"state ratio {ratio} must be above 0: give the bytes of states over those of KV")
    share = rest_bytes * ratio / (1 + ratio)
    width, size, ring = demand.verify_width, demand.slot_bytes, demand.ring_bytes_a_slot
    if width:
        return int((share - size * (1 + width) - ring) // (size * (1 + width / demand.slots_a_request) + ring))
    return int((share - demand.fixed_bytes - size - ring) // (size + ring))


def decode_state_slots(slots: int, running: int, extra_slots: int, tracking: int = 0) -> int:
    """Slots that a decode server allocates: those of its pool, but at least one for every request it may hold.

    Requests that arrive from prefill (`extra_slots` a group) hold theirs beside the running ones, each with its
    `tracking` slots. The surplus is not deducted from KV: it comes out of the reserve.
    Source: SGLang 0.5.23, `HybridMambaDecodeReqToTokenPool`.
    """
    require_positive(slots=slots, running=running)
    require_not_negative(extra_slots=extra_slots, tracking=tracking)
    return max(slots, (running + extra_slots) * (1 + tracking))


def balanced_ratio(demand: StateDemand, kv_bytes_a_token: int, tokens_a_request: float, *, dcp: int = 1) -> float:
    """The ratio of state to KV bytes at which both pools admit equally many requests of `tokens_a_request` each.

    A request takes slots_a_request + verify_width slots and tokens / dcp tokens of a rank's pool; a copied draft pool
    would not shrink with dcp. Source: derived; SGLang's `compute-mamba-ratio` states the same.
    """
    require_positive(kv_bytes_a_token=kv_bytes_a_token, dcp=dcp)
    if tokens_a_request <= 0:
        raise EngineRuleError(f"tokens_a_request is {tokens_a_request}, but must be above 0: give prompt + output")
    held = demand.slots_a_request + demand.verify_width
    return held * demand.slot_bytes / kv_bytes_a_token * dcp / tokens_a_request
