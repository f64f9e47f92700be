"""How many requests run, and the clamp that binds."""

from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

# The limit of a server that speculates where the command gives none.
SPECULATIVE_MAX_RUNNING: Final = 48


class Clamp(StrEnum):
    """What limits the requests that run in one DP group."""

    MAX_RUNNING = "max_running_requests"
    ESTIMATE = "estimate_without_limit"
    KV = "kv_tokens"
    STATE = "state_slots"


class Running(NamedTuple):
    """Requests that run in one DP group, and the clamp that set the number (the first of equals)."""

    requests: int
    clamp: Clamp


def admitted_requests(
    max_running: int | None,
    attn_dp: int,
    rank_tokens: int,
    context: int,
    state_slots: int | None = None,
    slots_a_request: int = 1,
) -> Running:
    """Requests that the scheduler of one DP group admits: what the engine prints as its maximum.

    The limit's share, at least one; without a limit 512 for each whole `context` that the pool holds, between 2,048 and
    4,096. Then half the `rank_tokens` (slots of one rank's pool, whatever DCP makes of them), and the state pool's
    share. `state_slots` leaves out the padding slot and is None for a model without recurrent state. The length of
    requests plays no part: `requests_that_run` adds it.
    Source: SGLang 0.5.23, `resolve_max_num_reqs`.
    """
    require_positive(attn_dp=attn_dp, context=context, slots_a_request=slots_a_request)
    require_not_negative(rank_tokens=rank_tokens, state_slots=state_slots or 0)
    if max_running is None:
        estimate = int(rank_tokens / context * 512)
        bounds = [Running(max(min(estimate, 4096), 2048), Clamp.ESTIMATE)]
    else:
        require_positive(max_running=max_running)
        bounds = [Running(max(1, max_running // attn_dp), Clamp.MAX_RUNNING)]
    bounds.append(Running(rank_tokens // 2, Clamp.KV))
    if state_slots is not None:
        bounds.append(Running(state_slots // slots_a_request, Clamp.STATE))
    return _least(bounds)


def requests_that_run(
    max_running: int | None,
    attn_dp: int,
    kv_tokens: int,
    tokens_a_request: int,
    state_slots: int | None = None,
    slots_a_request: int = 1,
    *,
    context: int | None = None,
    dcp: int = 1,
) -> Running:
    """Requests of `tokens_a_request` each that run in one DP group: those admitted, as far as the KV pool holds them.

    `kv_tokens` are the group's logical tokens (tokens a rank x `dcp`). `context` is the longest that a request may be;
    it counts only without a limit and is then required.
    """
    require_positive(tokens_a_request=tokens_a_request, dcp=dcp)
    require_not_negative(kv_tokens=kv_tokens)
    if max_running is None and context is None:
        raise EngineRuleError("without max_running the engine estimates it from the context: give one of them")
    admitted = admitted_requests(
        max_running, attn_dp, kv_tokens // dcp, context or tokens_a_request, state_slots, slots_a_request
    )
    held = Running(kv_tokens // tokens_a_request, Clamp.KV)
    return _least([admitted, held] if admitted.clamp is not Clamp.STATE else [held, admitted])


def _least(bounds: list[Running]) -> Running:
    return min(bounds, key=lambda bound: bound.requests)
