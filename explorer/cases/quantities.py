"""What a case may ask for: a name, its unit, how near a prediction must come, and the function that makes it.

A function takes a subject (a server and readings) and knows no case: what a case says is data. Tolerances are those of
the project: 0.1 % for KV and state, 1 % for weights, one request or slot for clamps, words as they are. Times have a
tolerance too, but no bar is held on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from explorer.cases.case import CaseError, Value
from explorer.cases.subject import Subject
from explorer.engines.command.launch import EngineName
from explorer.engines.resolution import state_cache
from explorer.engines.settings import Settings
from explorer.engines.startup.vllm import planned
from hw.units import GIB
from layouts.serving.buffers import deepep_buffer_bytes, most_dispatch_tokens, sent_width
from layouts.serving.chunks import group_chunk
from layouts.serving.compressed_pools import PAGE, token_bytes_older
from layouts.serving.control import Vote, agree
from layouts.serving.disaggregation import extra_request_slots
from layouts.serving.pools import rest_for_pools
from layouts.serving.requests import SPECULATIVE_MAX_RUNNING, Running, admitted_requests
from layouts.serving.states import DEFAULT_STATE_RATIO, StateDemand, balanced_ratio, state_slots_a_request
from layouts.serving.vllm_capacity import Pool, logged_tokens_by_groups, max_concurrency
from layouts.serving.vllm_groups import Request
from layouts.serving.vllm_memory import DEFAULT_UTILISATION, Measured, kv_budget, suggested_kv_bytes

_UNBOUNDED: Final = 1 << 40  # a pool that nothing is known of, in tokens


@dataclass(frozen=True)
class Quantity:
    """`tolerance` is relative, or in units where `absolute`; words and truths must agree."""

    unit: str
    tolerance: float
    predict: Callable[[Subject], Value]
    absolute: bool = False


def _weights(subject: Subject) -> float:
    return subject.parts.weights / GIB


def _token(subject: Subject) -> int:
    return subject.parts.token


def _kv(subject: Subject) -> float:
    return subject.count("kv_tokens") * subject.parts.token / GIB


def _kv_tokens(subject: Subject) -> int:
    return subject.started.kv_tokens


def _kv_tokens_older(subject: Subject) -> int:
    """Tokens of compressed attention by the rules of SGLang up to mid 2026, in whole pages."""
    layers = subject.parts.compressed
    if layers is None:
        raise CaseError(f"{subject.setup.request.model.name} has no compressed attention: ask for kv_tokens")
    token = token_bytes_older(layers, drafts=subject.settings.speculation is not None)
    return int(subject.bytes("budget_gib") / token) // PAGE * PAGE


def _states(part: str) -> Callable[[Subject], float]:
    def predict(subject: Subject) -> float:
        slot = subject.parts.state
        held = 0 if slot is None else getattr(slot, part)
        return (subject.count("state_slots") + 1) * held / GIB  # one slot more is a sink for padding

    return predict


def _state_slots(subject: Subject) -> int:
    return subject.started.state_slots or 0


def _measured(subject: Subject) -> Measured:
    """What vLLM measured, from the readings alone."""
    return Measured(
        total=subject.bytes("total_gib"),
        weights=subject.bytes("weights_gib"),
        non_torch=subject.optional_bytes("non_torch_gib") or 0,
        peak=subject.optional_bytes("peak_gib") or 0,
        graphs=subject.optional_bytes("graphs_gib") or 0,
        free=subject.optional_bytes("free_gib"),
    )


def _share(settings: Settings) -> float:
    return DEFAULT_UTILISATION if settings.pools.share is None else settings.pools.share


def _budget(subject: Subject) -> float:
    if subject.settings.engine is EngineName.VLLM:
        return kv_budget(_measured(subject), _share(subject.settings)).kv / GIB
    share = subject.started.share
    return rest_for_pools(subject.bytes("left_gib"), subject.bytes("free_gib"), share) / GIB


def _outside(subject: Subject) -> float:
    return kv_budget(_measured(subject), _share(subject.settings)).outside / GIB


def _suggested(which: int) -> Callable[[Subject], float]:
    def predict(subject: Subject) -> float:
        both = suggested_kv_bytes(_measured(subject), subject.bytes("captured_gib"), _share(subject.settings))
        return both[which] / GIB

    return predict


def _slots_a_request(settings: Settings) -> int:
    """State slots of a running request, by the flags alone."""
    pools = settings.pools
    overlap = pools.overlap_schedule and settings.degrees.pp == 1
    return state_slots_a_request(state_cache(pools), overlap=overlap)


def _admitted(subject: Subject) -> Running:
    """By the flags and the readings alone; a KV pool of which nothing is given does not bind."""
    settings, slots = subject.settings, subject.given.get("state_slots")
    default = SPECULATIVE_MAX_RUNNING if settings.speculation is not None else None
    limit = default if settings.pools.max_running is None else settings.pools.max_running
    return admitted_requests(
        limit,
        settings.degrees.attn_dp,
        int(subject.given.get("kv_tokens", _UNBOUNDED)),
        settings.pools.context_length or _UNBOUNDED,
        None if slots is None else int(slots),
        1 if slots is None else _slots_a_request(settings),
    )


def _running(subject: Subject) -> int:
    return _admitted(subject).requests


def _clamp(subject: Subject) -> str:
    return str(_admitted(subject).clamp)


def _requests_in_kv(subject: Subject) -> int:
    """Requests of a length that a group's pool holds."""
    return _pool_tokens(subject) * subject.settings.degrees.dcp // subject.count("tokens_a_request")


def _pool_tokens(subject: Subject) -> int:
    """Tokens of a rank's pool: a reading, or what the ratio of state to KV gives beside the state slots read."""
    slot, ratio = subject.parts.state if "kv_tokens" not in subject.given else None, subject.settings.pools.state_ratio
    if slot is None:
        return subject.count("kv_tokens")
    states = (subject.count("state_slots") + 1) * slot.bytes
    return int(states / (DEFAULT_STATE_RATIO if ratio is None else ratio)) // subject.parts.token


def _ratio(subject: Subject) -> float:
    slot = subject.parts.state
    demand = StateDemand(0 if slot is None else slot.bytes, slots_a_request=_slots_a_request(subject.settings))
    length, dcp = subject.reading("tokens_a_request"), subject.settings.degrees.dcp
    return balanced_ratio(demand, subject.parts.token, length, dcp=dcp)


def _dispatched(subject: Subject) -> tuple[int, int, int]:
    """Rows a rank may dispatch, values of a row, experts: readings, or what the command says of its model."""
    if {"width", "experts"} <= set(subject.given):
        return subject.count("dispatch_tokens"), subject.count("width"), subject.count("experts")
    request, moe = subject.setup.request, subject.moe
    rows = subject.given.get("dispatch_tokens", request.dispatch_tokens or 0)
    return int(rows), sent_width(moe.width), moe.experts + request.holding.redundant_experts


def _deepep(subject: Subject) -> float:
    rows, width, experts = _dispatched(subject)
    return deepep_buffer_bytes(rows, width, experts) / GIB


def _dispatch_fits(subject: Subject) -> bool:
    rows, width, experts = _dispatched(subject)
    return rows <= most_dispatch_tokens(width, experts)


def _dispatch_tokens(subject: Subject) -> int:
    return subject.setup.request.dispatch_tokens or 0


def _fits(subject: Subject) -> bool:
    return subject.started.starts


def _valid(subject: Subject) -> bool:
    return not subject.setup.broken


def _chunk(subject: Subject) -> int:
    return group_chunk(subject.settings.pools.chunk or 0, subject.settings.degrees.attn_dp)


def _extra_slots(subject: Subject) -> int:
    pools, degrees = subject.settings.pools, subject.settings.degrees
    stated = pools.extra_slots
    return extra_request_slots(pools.max_running, degrees.replicas * degrees.attn_dp) if stated is None else stated


def _padded(subject: Subject) -> int:
    """Rows that all ranks compute together where one is busy and every rank is padded to it."""
    busy, ranks = subject.count("rank_tokens"), subject.count("ranks")
    votes = [Vote(busy, 0, is_extend=True)] + [Vote(0, 0)] * (ranks - 1)
    return agree(votes).padded_rows * ranks


def _logged_tokens(subject: Subject) -> int:
    return subject.started.logged_tokens or 0


def _pool(subject: Subject) -> Pool:
    """vLLM's blocks, of the size that the log says where it is given."""
    block = subject.given.get("block_tokens")
    return planned(subject.setup, subject.parts, subject.started.budget, None if block is None else int(block))


def _logged_by_groups(subject: Subject) -> int:
    """The cache size in logs up to vLLM 0.19, which share the blocks equally among the groups of layers."""
    return logged_tokens_by_groups(_pool(subject), subject.setup.layout.dcp)


def _logged_concurrency(subject: Subject) -> float:
    """What vLLM prints beside its cache size: tokens over the longest request."""
    longest = subject.settings.pools.context_length or subject.setup.request.model.context_limit
    if "logged_tokens" in subject.given:
        return subject.count("logged_tokens") / longest
    if "block_tokens" in subject.given:
        return max_concurrency(_pool(subject), Request(longest))
    return subject.started.logged_concurrency or 0.0


def _seen(name: str, scale: float) -> Callable[[Subject], float]:
    def predict(subject: Subject) -> float:
        return getattr(subject.served.asked, name) * scale

    return predict


_KV: Final = 1e-3
_WEIGHTS: Final = 1e-2
_TIMES: Final = 0.25

QUANTITIES: Final[Mapping[str, Quantity]] = MappingProxyType(
    {
        "weights_gib": Quantity("GiB", _WEIGHTS, _weights),
        "kv_bytes_a_token": Quantity("B", _KV, _token),
        "kv_gib": Quantity("GiB", _KV, _kv),
        "kv_tokens": Quantity("tokens", _KV, _kv_tokens),
        "kv_tokens_older": Quantity("tokens", _KV, _kv_tokens_older),
        "state_gib": Quantity("GiB", _KV, _states("recurrent")),
        "conv_gib": Quantity("GiB", _KV, _states("conv")),
        "state_slots": Quantity("slots", 1, _state_slots, absolute=True),
        "budget_gib": Quantity("GiB", _KV, _budget),
        "outside_gib": Quantity("GiB", _KV, _outside),
        "suggested_gib": Quantity("GiB", _KV, _suggested(0)),
        "suggested_most_gib": Quantity("GiB", _KV, _suggested(1)),
        "running_requests": Quantity("requests", 1, _running, absolute=True),
        "binding_clamp": Quantity("", 0, _clamp),
        "requests_in_kv": Quantity("requests", 1, _requests_in_kv, absolute=True),
        "balanced_ratio": Quantity("", _WEIGHTS, _ratio),
        "deepep_gib": Quantity("GiB", 0, _deepep),
        "dispatch_fits": Quantity("", 0, _dispatch_fits),
        "dispatch_tokens": Quantity("rows", 0, _dispatch_tokens),
        "fits": Quantity("", 0, _fits),
        "valid": Quantity("", 0, _valid),
        "group_chunk": Quantity("tokens", 0, _chunk),
        "extra_request_slots": Quantity("slots", 1, _extra_slots, absolute=True),
        "padded_rows": Quantity("rows", 0, _padded),
        "logged_tokens": Quantity("tokens", _KV, _logged_tokens),
        "logged_tokens_by_groups": Quantity("tokens", _KV, _logged_by_groups),
        "logged_concurrency": Quantity("", _KV, _logged_concurrency),
        "tpot_ms": Quantity("ms", _TIMES, _seen("tpot_seconds", 1e3)),
        "ttft_ms": Quantity("ms", _TIMES, _seen("ttft_seconds", 1e3)),
        "tokens_per_second": Quantity("tokens/s", _TIMES, _seen("tokens_per_second", 1.0)),
    }
)
RATES: Final = ("tokens_per_second",)
"""Of these more is better."""
