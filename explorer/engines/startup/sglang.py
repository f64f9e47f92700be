"""SGLang's start: the share of free memory that is static, states first, then KV; requests clamped by both."""

from typing import Final

from explorer.engines.setup import Setup
from explorer.engines.sglang import COUNTS
from explorer.engines.startup.found import Given, Startup
from explorer.engines.startup.parts import Parts
from explorer.engines.values import Values
from explorer.residents.estimates import prompts
from layouts.kda import KDA
from layouts.serving.chunks import captures_prefill, prefill_graph_limit, prefill_graph_sizes
from layouts.serving.errors import EngineRuleError
from layouts.serving.pools import DEFAULT_WINDOW_RATIO, kv_tokens, least_mem_fraction, rest_for_pools, window_pools
from layouts.serving.requests import admitted_requests, requests_that_run
from layouts.serving.reserve import Role, ServerSettings, default_limits, default_mem_fraction
from layouts.serving.states import (
    DEFAULT_STATE_RATIO,
    StateCache,
    StateDemand,
    StatePool,
    state_pool,
    state_slots_a_request,
)

_NO_STATES: Final = StatePool(0, 0, 0)
_ENDLESS: Final = 1 << 40


def start(setup: Setup, given: Given) -> Startup:
    """What a start allocates. A pool that no memory is left for is a refusal, not an error."""
    parts = Parts(setup)
    share, source, refusal = _share(setup, parts)
    free = parts.free if given.free is None else given.free
    weights = parts.weights if given.weights is None else given.weights
    left = free - weights if given.left is None else given.left
    budget = int(rest_for_pools(left, free, share)) if given.budget is None else given.budget
    states, tokens, window = _NO_STATES, 0, 0
    demand = _demand(setup, parts, _state_cache(setup))
    try:
        if demand is not None:
            states = _state_pool(setup, budget, demand)
        rest = budget - states.deducted - parts.draft_pool() if given.pool is None else given.pool
        tokens, window = _tokens(setup, parts, rest)
    except EngineRuleError as error:
        least = f"; --mem-fraction-static must be above {least_mem_fraction(left, free)}" if 0 <= left <= free else ""
        refusal = refusal or f"{error}{least}"
    context, length = setup.request.context, setup.request.model.context_limit
    slots = states.slots if demand is not None else None
    clamps = (slots, 1 if demand is None else demand.slots_a_request)
    limit, dp, dcp = setup.settings.pools.max_running, setup.layout.attn_dp, setup.layout.dcp
    grows = bool(parts.token)  # without a pool that grows with the context only the other clamps count
    rank = tokens if grows else _ENDLESS
    admitted = admitted_requests(limit, dp, rank, length, *clamps)
    running = requests_that_run(limit, dp, rank * dcp, context if grows else 1, *clamps, context=length, dcp=dcp)
    group, windows = tokens * dcp, window * parts.window_token()
    reserved, most = parts.reserved((0, 0) if setup.settings.role is Role.DECODE else prompts(setup.request.chunk))
    return Startup(
        parts=parts,
        share=share,
        share_source=source,
        free=free,
        weights=weights,
        budget=budget,
        state_slots=slots,
        slots_a_request=clamps[1],
        state_bytes=states.bytes,
        verify_bytes=states.intermediate_bytes,
        window_bytes=windows,
        draft_bytes=parts.draft_pool(),
        kv_bytes=tokens * parts.token,
        kv_tokens=tokens,
        group_tokens=group,
        admitted=admitted.requests,
        running=running.requests,
        clamp=running.clamp,
        longest=min(group, length) if grows else length,
        left=left - states.deducted - parts.draft_pool() - windows - tokens * parts.token,
        reserved=reserved,
        reserved_high=most,
        groups=setup.layout.replicas * setup.layout.attn_dp,
        refusal=refusal,
    )


def _tokens(setup: Setup, parts: Parts, rest: int) -> tuple[int, int]:
    """Token slots of a rank: of the layers that attend to everything, and of those with a window."""
    pools, page = setup.settings.pools, setup.settings.pools.page or 1
    if not parts.window_token():
        return (kv_tokens(rest, parts.token, page, pools.max_tokens) if parts.token else 0), 0
    ratio = DEFAULT_WINDOW_RATIO if pools.window_ratio is None else pools.window_ratio
    sizes = parts.token, parts.window_token(), parts.window()
    both = window_pools(rest, *sizes, ratio=ratio, page=page, max_total_tokens=pools.max_tokens)
    return both.full, both.window


def _share(setup: Setup, parts: Parts) -> tuple[float, str, str | None]:
    """The share of free memory for weights and pools, who says so, and why there is none."""
    pools = setup.settings.pools
    if pools.share is not None:
        return pools.share, "--mem-fraction-static", None
    try:
        return default_mem_fraction(parts.total, server_settings(setup, parts)), "the engine's default", None
    except EngineRuleError as error:
        return 0.0, "the engine's default", str(error)


def server_settings(setup: Setup, parts: Parts) -> ServerSettings:
    """What the default share depends on."""
    pools, degrees, role = setup.settings.pools, setup.settings.degrees, setup.settings.role
    running = Values(setup.launch).count(COUNTS["max_running"])  # as given: a draft's default is set after the reserve
    limits = default_limits(parts.total, degrees.tp, running)
    batch = max(pools.graph_sizes or (pools.graph_limit or limits.max_batch,))
    return ServerSettings(
        chunk=pools.chunk or limits.chunk,
        max_batch=batch,
        decode_graphs=pools.graphs,
        tp=degrees.tp,
        pp=degrees.pp,
        attn_dp=degrees.attn_dp,
        role=role,
        latent_kv=setup.latent,
        prefill_graphs=_prefill_graphs(setup, pools.chunk or limits.chunk),
        deepep=degrees.exchange == "all_to_all",
        max_running=running,
        verify_width=setup.request.verify_width,
    )


def _prefill_graphs(setup: Setup, chunk: int) -> int:
    """Prefill sizes that are captured where the command does not say."""
    values, degrees, model = Values(setup.launch), setup.settings.degrees, setup.request.model
    captured = captures_prefill(
        decode_only=setup.settings.role is Role.DECODE,
        kda=any(isinstance(la.attention, KDA) and not la.attention.head_gate for la in model.kinds),
        pp=degrees.pp,
        dcp=degrees.dcp,
        exchange=values.word("moe_a2a_backend") or "none",
        two_batch=values.switch("enable_two_batch_overlap"),
    )
    off = values.switch("disable_prefill_cuda_graph") or values.word("cuda_graph_backend_prefill") == "disabled"
    if not captured or off:
        return 0
    return len(prefill_graph_sizes(prefill_graph_limit(chunk, latent_kv=setup.latent, pp=degrees.pp)))


def _state_cache(setup: Setup) -> StateCache:
    """The strategy stated; else snapshots in buffers, which only a schedule without overlap goes without."""
    pools = setup.settings.pools
    if not pools.prefix_cache:
        return StateCache.OFF
    word = pools.state_strategy or "auto"
    if word in tuple(StateCache):
        return StateCache(word)
    return StateCache.EXTRA_BUFFER if pools.overlap_schedule or (pools.page or 1) > 1 else StateCache.NO_BUFFER


def _demand(setup: Setup, parts: Parts, cache: StateCache) -> StateDemand | None:
    slot = parts.state
    if slot is None:
        return None
    pools = setup.settings.pools
    ring = parts.ring_slot() if pools.replay_state else 0
    keeps = setup.settings.speculation is not None and not pools.replay_state and not setup.request.prefill
    overlap = pools.overlap_schedule and setup.layout.pp == 1
    return StateDemand(
        slot_bytes=slot.bytes,
        ring_bytes_a_slot=ring,
        verify_width=setup.request.verify_width if keeps else 0,
        slots_a_request=state_slots_a_request(cache, overlap=overlap),
    )


def _state_pool(setup: Setup, budget: int, demand: StateDemand) -> StatePool:
    pools = setup.settings.pools
    return state_pool(
        budget,
        demand,
        ratio=DEFAULT_STATE_RATIO if pools.state_ratio is None else pools.state_ratio,
        max_slots=pools.state_slots,
        max_running=setup.settings.pools.max_running,
        attn_dp=setup.layout.attn_dp,
        prefix_cache=pools.prefix_cache,
    )
