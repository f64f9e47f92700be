"""How many requests run, and the clamp that binds."""

from enum import StrEnum
from typing import NamedTuple

from layouts.serving.errors import require_not_negative, require_positive


class Clamp(StrEnum):
    """What limits the requests that run in one DP group."""

    MAX_RUNNING = "max_running_requests"
    KV = "kv_tokens"
    STATE = "state_slots"


class Running(NamedTuple):
    """Requests that run in one DP group, and the clamp that set the number (the first of equals)."""

    requests: int
    clamp: Clamp


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
