"""How many requests run: recurrent-state slots a request, and the clamp that binds."""

from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive


class StateBuffering(StrEnum):
    """How a radix cache tracks recurrent states of running requests."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


class Clamp(StrEnum):
    """What limits the requests that run in one DP group."""

    MAX_RUNNING = "max_running_requests"
    KV = "kv_tokens"
    STATE = "state_slots"


class Running(NamedTuple):
    """Requests that run in one DP group, and the clamp that set the number (the first of equals)."""

    requests: int
    clamp: Clamp


# State slots a running request holds under a radix cache before tracking slots. SGLang 0.5.23, kv_cache_configurator.
_RADIX_SLOTS: Final = 3


def state_slots_a_request(
    radix_cache: bool, buffering: StateBuffering = StateBuffering.NO_BUFFER, overlap: bool = True
) -> int:
    """Recurrent-state slots that admission counts for a request: 1 without a radix cache, else 3 to 5.

    `overlap`: the scheduler overlaps steps, for which a non-lazy extra buffer tracks two states and not one.
    Source: SGLang 0.5.23, `_calculate_mamba_ratio`. Raises `EngineRuleError` for a lazy buffer without overlap.
    """
    if not radix_cache:
        return 1
    if buffering is StateBuffering.NO_BUFFER:
        return _RADIX_SLOTS
    if buffering is StateBuffering.EXTRA_BUFFER_LAZY:
        if not overlap:
            raise EngineRuleError("a lazy extra buffer needs the overlap schedule: enable it, or use extra_buffer")
        return _RADIX_SLOTS + 1
    return _RADIX_SLOTS + (2 if overlap else 1)


def requests_that_run(
    max_running: int,
    attn_dp: int,
    kv_tokens: int,
    tokens_a_request: int,
    state_slots: int | None = None,
    slots_a_request: int = 1,
) -> Running:
    """Requests that run in one DP group: min of the limit's share, the KV pool's and the state pool's.

    `kv_tokens` are the group's logical tokens (tokens a rank x DCP); `state_slots` leaves out the padding slot and is
    None for a model without recurrent state. The share of the limit is at least one.
    """
    require_positive(
        max_running=max_running, attn_dp=attn_dp, tokens_a_request=tokens_a_request, slots_a_request=slots_a_request
    )
    require_not_negative(kv_tokens=kv_tokens, state_slots=state_slots or 0)
    bounds = [
        Running(max(1, max_running // attn_dp), Clamp.MAX_RUNNING),
        Running(kv_tokens // tokens_a_request, Clamp.KV),
    ]
    if state_slots is not None:
        bounds.append(Running(state_slots // slots_a_request, Clamp.STATE))
    return min(bounds, key=lambda bound: bound.requests)


def balanced_state_ratio(
    slots_a_request: int, draft_tokens: int, state_bytes: int, kv_bytes_a_token: int, dcp: int, tokens_a_request: int
) -> float:
    """State bytes over KV bytes of a pool at which both admit equally many requests (dimensionless).

    A request holds `slots_a_request` states and `draft_tokens` verification copies of it (0 where a replay ring keeps
    inputs instead), and `tokens_a_request` KV tokens of which a rank stores 1/dcp.
    """
    require_positive(
        slots_a_request=slots_a_request,
        state_bytes=state_bytes,
        kv_bytes_a_token=kv_bytes_a_token,
        dcp=dcp,
        tokens_a_request=tokens_a_request,
    )
    require_not_negative(draft_tokens=draft_tokens)
    return (slots_a_request + draft_tokens) * (state_bytes / kv_bytes_a_token) * dcp / tokens_a_request
