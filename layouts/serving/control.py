"""Control synchronisation of the DP ranks: what every rank tells the others before a step, and what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

from layouts.serving.errors import EngineRuleError, require_positive


class ForwardMode(IntEnum):
    """What a rank is about to run. An idle rank holds no request but still joins the collectives."""

    IDLE = 0
    DECODE = 1
    EXTEND = 2


@dataclass(frozen=True)
class Vote:
    """The integers that one rank shares (seed article 002; the public engine adds health and prefix fields)."""

    num_tokens: int
    num_tokens_for_logprob: int
    can_cuda_graph: bool = True
    is_extend: bool = False
    can_two_batch_overlap: bool = True
    forward_mode: ForwardMode = ForwardMode.DECODE
    can_run_breakable_cuda_graph: bool = True


SHARED_INTEGERS: Final = len(fields(Vote))


@dataclass(frozen=True)
class Agreement:
    """What every rank concludes from the same votes. Counts are token rows of each rank."""

    num_tokens: tuple[int, ...]
    num_tokens_for_logprob: tuple[int, ...]
    can_cuda_graph: bool
    is_extend: bool
    can_two_batch_overlap: bool
    forward_mode: ForwardMode | None
    can_run_breakable_cuda_graph: bool
    idle_ranks: tuple[int, ...]
    padded_rows: int


def agree(votes: Sequence[Vote], *, verify_width: int = 1) -> Agreement:
    """Reduce the votes: counts stay lists, a graph needs every vote, one extending rank makes an extend step.

    Counts of decode votes are requests; each computes `verify_width` rows (draft tokens + 1). Ranks without requests
    run an idle batch as soon as any rank has one. `forward_mode` is None where busy ranks differ.
    """
    require_positive(verify_width=verify_width)
    if not votes:
        raise EngineRuleError("no rank voted: give one vote a DP rank")
    tokens = tuple(vote.num_tokens * (1 if vote.is_extend else verify_width) for vote in votes)
    busy = {vote.forward_mode for vote in votes if vote.forward_mode is not ForwardMode.IDLE}
    return Agreement(
        num_tokens=tokens,
        num_tokens_for_logprob=tuple(vote.num_tokens_for_logprob for vote in votes),
        can_cuda_graph=all(vote.can_cuda_graph for vote in votes),
        is_extend=any(vote.is_extend for vote in votes),
        can_two_batch_overlap=all(vote.can_two_batch_overlap for vote in votes),
        forward_mode=busy.pop() if len(busy) == 1 else None if busy else ForwardMode.IDLE,
        can_run_breakable_cuda_graph=all(vote.can_run_breakable_cuda_graph for vote in votes),
        idle_ranks=tuple(rank for rank, count in enumerate(tokens) if count == 0) if any(tokens) else (),
        padded_rows=max(tokens),
    )


def agree_without_exchange(bound: int | None, votes: Sequence[Vote], *, verify_width: int = 1) -> Agreement:
    """The agreement where the exchange is skipped: every rank computes as if all ranks had `bound` requests.

    A step then costs the same for every batch up to the bound. Skipping needs the bound, the bound must hold the
    largest rank, and all ranks must be in one forward mode, since none learns another's. Raises `EngineRuleError`.
    """
    if bound is None:
        raise EngineRuleError(
            "the control exchange is skipped without a static bound, so each rank would gather its own shape: set both"
        )
    require_positive(bound=bound)
    largest = max(vote.num_tokens for vote in votes)
    if largest > bound:
        raise EngineRuleError(
            f"the static bound {bound} is below the largest rank's {largest} requests: raise it to at least {largest}"
        )
    modes = {vote.forward_mode for vote in votes} - {ForwardMode.IDLE}
    if len(modes) > 1:
        names = ", ".join(sorted(mode.name for mode in modes))
        raise EngineRuleError(f"ranks are in {names} and do not exchange it: keep the exchange, or split the phases")
    (mode,) = modes or {ForwardMode.DECODE}
    extend = mode is ForwardMode.EXTEND
    as_if = Vote(num_tokens=bound, num_tokens_for_logprob=bound, is_extend=extend, forward_mode=mode)
    return agree([as_if] * len(votes), verify_width=verify_width)
