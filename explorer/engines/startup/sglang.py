"""SGLang's start: the share of free memory that is static, states first, then KV; requests clamped by both."""

from math import ceil
from typing import Final, NamedTuple

from explorer.engines.resolution import state_cache
from explorer.engines.setup import Setup
from explorer.engines.sglang import CHUNK, COUNTS
from explorer.engines.startup.found import Given, Startup
from explorer.engines.startup.parts import Parts
from explorer.engines.values import Values
from explorer.residents.estimates import prompts
from layouts.kda import KDA
from layouts.serving.chunks import captures_prefill, group_chunk, prefill_graph_count, prefill_graph_limit
from layouts.serving.compressed_pools import (
    COMPRESSED_RUNNING,
    COMPRESSED_WINDOW_RATIO,
    CompressedLayers,
    compressed_pools,
    window_cap,
)
from layouts.serving.errors import EngineRuleError
from layouts.serving.pools import (
    DEFAULT_WINDOW_RATIO,
    kv_tokens,
    least_mem_fraction,
    pools_beside_window,
    rest_for_pools,
    window_pools,
    window_tokens_needed,
)
from layouts.serving.requests import admitted_requests, requests_that_run
from layouts.serving.reserve import Role, ServerSettings, default_limits, default_mem_fraction, fraction_with_vision
from layouts.serving.states import (
    DEFAULT_STATE_RATIO,
    StateCache,
    StateDemand,
    StatePool,
    decode_state_slots,
    state_pool,
    state_slots_a_request,
    tracking_slots,
)

_NO_STATES: Final = StatePool(0, 0, 0)
_ENDLESS: Final = 1 << 40
_TEXT_ONLY: Final = ("language_only", "language_model_only")
_MOST_PREFILL: Final = 16384  # tokens of a prefill batch where chunks are off and --max-prefill-tokens is not given


def start(setup: Setup, given: Given) -> Startup:
    """What a start allocates. A pool that no memory is left for is a refusal, not an error."""
    parts = Parts(setup)
    share, source, refusal = _share(setup, parts)
    free = parts.free if given.free is None else given.free
    weights = parts.weights if given.weights is None else given.weights
    left = free - weights if given.left is None else given.left
    budget = int(rest_for_pools(left, free, share)) if given.budget is None else given.budget
    states, pool = _NO_STATES, _Pools(0)
    demand = _demand(setup, parts, state_cache(setup.settings.pools))
    try:
        if demand is not None:
            states = _state_pool(setup, budget, demand)
        rest = budget - states.deducted - parts.draft_pool() if given.pool is None else given.pool
        pool = _pools(setup, parts, rest)
    except EngineRuleError as error:
        least = f"; --mem-fraction-static must be above {least_mem_fraction(left, free)}" if 0 <= left <= free else ""
        refusal = refusal or f"{error}{least}"
    context, length = setup.request.context, setup.request.model.context_limit
    slots = states.slots if demand is not None else None
    clamps = (slots, 1 if demand is None else demand.slots_a_request)
    limit, dp, dcp = _limit(setup, parts), setup.layout.attn_dp, setup.layout.dcp
    grows = bool(parts.token)  # without a pool that grows with the context only the other clamps count
    rank = pool.tokens if grows else _ENDLESS
    admitted = admitted_requests(limit, dp, rank, length, *clamps)
    running = requests_that_run(limit, dp, rank * dcp, context if grows else 1, *clamps, context=length, dcp=dcp)
    group = pool.tokens * dcp
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
        window_bytes=pool.window_bytes,
        draft_bytes=parts.draft_pool(),
        kv_bytes=pool.kv_bytes,
        kv_tokens=pool.tokens,
        group_tokens=group,
        admitted=admitted.requests,
        running=running.requests,
        clamp=running.clamp,
        longest=min(group, length) if grows else length,
        left=left - states.deducted - parts.draft_pool() - pool.bytes - _surplus(setup, demand, states),
        reserved=reserved,
        reserved_high=most,
        groups=setup.layout.replicas * setup.layout.attn_dp,
        refusal=refusal,
    )


def _surplus(setup: Setup, demand: StateDemand | None, states: StatePool) -> int:
    """Bytes of state slots that a decode server allocates beyond its pool: they come out of the reserve."""
    pools = setup.settings.pools
    if demand is None or setup.settings.role is not Role.DECODE or pools.max_running is None or not states.slots:
        return 0
    tracking = tracking_slots(state_cache(pools), overlap=pools.overlap_schedule and setup.layout.pp == 1)
    running = max(1, pools.max_running // setup.layout.attn_dp)
    allocated = decode_state_slots(states.slots, running, pools.extra_slots or 0, tracking)
    return (allocated - states.slots) * (demand.slot_bytes + demand.ring_bytes_a_slot)


class _Pools(NamedTuple):
    """KV of a rank: tokens, and bytes of what grows with them and of windows, with the states of unfinished rows."""

    tokens: int
    kv_bytes: int = 0
    window_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.kv_bytes + self.window_bytes


def _pools(setup: Setup, parts: Parts, rest: int) -> _Pools:
    if parts.compressed is not None:
        return _compressed(setup, parts, parts.compressed, rest)
    tokens, window = _tokens(setup, parts, rest)
    return _Pools(tokens, tokens * parts.token, window * parts.window_token())


def _compressed(setup: Setup, parts: Parts, layers: CompressedLayers, rest: int) -> _Pools:
    """Windows by the ratio where the command gives one, else by the requests that may run; with a draft a request is
    given twice its verify width in a step."""
    pools, request, dp = setup.settings.pools, setup.request, setup.layout.attn_dp
    running = max((_limit(setup, parts) or COMPRESSED_RUNNING) // dp, 1)
    decodes, drafts = setup.settings.role is Role.DECODE, setup.settings.speculation is not None
    extra = (pools.extra_slots or 0) if decodes else 0
    chunk = group_chunk(server_settings(setup, parts).chunk, dp)
    slots = None
    if pools.window_ratio is None and (decodes or chunk > 0):
        slots = window_cap(
            running,
            parts.window(),
            chunk,
            verify_width=request.verify_width,
            step_tokens=2 * request.verify_width if drafts else None,
            overlap=pools.overlap_schedule,
            prefix_cache=pools.prefix_cache,
            extra_slots=extra if decodes else None,
        )
    found = compressed_pools(
        rest,
        layers,
        running,
        window_slots=slots,
        ratio=COMPRESSED_WINDOW_RATIO if pools.window_ratio is None else pools.window_ratio,
        window=parts.window(),
        drafts=drafts,
        extra_slots=extra,
        max_total_tokens=pools.max_tokens,
    )
    sizes = (found.tokens * found.token_bytes, found.window_slots * found.window_bytes)
    kv, windows = map(ceil, sizes)
    return _Pools(found.tokens, kv, windows + found.state_bytes)


def _limit(setup: Setup, parts: Parts) -> int | None:
    """Requests of all attention groups that may run; compressed attention has a default of its own."""
    limit = setup.settings.pools.max_running
    return COMPRESSED_RUNNING if limit is None and parts.compressed is not None else limit


def _tokens(setup: Setup, parts: Parts, rest: int) -> tuple[int, int]:
    """Token slots of a rank: of the layers that attend to everything, and of those with a window."""
    pools, page = setup.settings.pools, setup.settings.pools.page or 1
    if not parts.window_token():
        return (kv_tokens(rest, parts.token, page, pools.max_tokens) if parts.token else 0), 0
    limit = _limit(setup, parts)
    if not pools.prefix_cache and limit is not None and parts.token:
        needed = _window_slots(setup, parts, limit)
        beside = pools_beside_window(rest, parts.token, parts.window_token(), needed, page)
        return beside.full, beside.window
    ratio = DEFAULT_WINDOW_RATIO if pools.window_ratio is None else pools.window_ratio
    sizes = parts.token, parts.window_token(), parts.window()
    both = window_pools(rest, *sizes, ratio=ratio, page=page, max_total_tokens=pools.max_tokens)
    return both.full, both.window


def _window_slots(setup: Setup, parts: Parts, limit: int) -> int:
    """Window slots of the requests that may run, where no prefix cache keeps others."""
    pools, dp = setup.settings.pools, setup.layout.attn_dp
    decodes = setup.settings.role is Role.DECODE
    return window_tokens_needed(
        max(limit // dp, 1),
        parts.window(),
        page=pools.page or 1,
        verify_width=setup.request.verify_width,
        chunk=max(group_chunk(server_settings(setup, parts).chunk, dp), 0),
        overlap=pools.overlap_schedule and setup.layout.pp == 1,
        extra_slots=(pools.extra_slots or 0) if decodes else None,
    )


def _share(setup: Setup, parts: Parts) -> tuple[float, str, str | None]:
    """The share of free memory for weights and pools, who says so, and why there is none."""
    pools = setup.settings.pools
    if pools.share is not None:
        return pools.share, "--mem-fraction-static", None
    try:
        share = default_mem_fraction(parts.total, server_settings(setup, parts))
    except EngineRuleError as error:
        return 0.0, "the engine's default", str(error)
    encoder = setup.request.model.encoder
    if encoder is not None and _encodes(setup):
        share = fraction_with_vision(share, *encoder)
    return share, "the engine's default", None


def _encodes(setup: Setup) -> bool:
    """Whether a server of a multimodal model runs its encoder."""
    values = Values(setup.launch)
    text_only = any(values.switch(name) for name in _TEXT_ONLY)
    return setup.settings.role is not Role.DECODE and not text_only


def server_settings(setup: Setup, parts: Parts) -> ServerSettings:
    """What the default share depends on."""
    pools, degrees, role = setup.settings.pools, setup.settings.degrees, setup.settings.role
    running = Values(setup.launch).count(COUNTS["max_running"])  # as given: a draft's default is set after the reserve
    limits = default_limits(parts.total, degrees.tp, running)
    batch = max(pools.graph_sizes or (pools.graph_limit or limits.max_batch,))
    return ServerSettings(
        chunk=_prefill_tokens(setup) or pools.chunk or limits.chunk,
        max_batch=batch,
        decode_graphs=pools.graphs,
        tp=degrees.tp,
        pp=degrees.pp,
        attn_dp=degrees.attn_dp,
        role=role,
        latent_kv=setup.latent,
        prefill_graphs=_prefill_graphs(setup, pools.chunk or limits.chunk),
        deepep=degrees.exchange == "all_to_all" and pools.exchange_buffer,
        max_running=running,
        verify_width=setup.request.verify_width,
    )


def _prefill_tokens(setup: Setup) -> int | None:
    """Tokens of a prefill batch of a server whose chunks are switched off."""
    values = Values(setup.launch)
    chunk = values.number(CHUNK)
    return values.count("max_prefill_tokens", _MOST_PREFILL, 1) if chunk is not None and chunk <= 0 else None


def _prefill_graphs(setup: Setup, chunk: int) -> int:
    """Prefill sizes that are captured: those stated, those up to the stated limit, or up to the engine's."""
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
    sizes, limit = values.counts("cuda_graph_bs_prefill"), values.count("cuda_graph_max_bs_prefill", None, 1)
    if sizes is not None:
        return len(sizes)
    if limit is not None:
        return prefill_graph_count(limit)
    if _prefill_tokens(setup) is not None:
        return int(setup.latent)  # a chunk of -1 leaves the list empty; what MLA needs is reserved all the same
    most = setup.settings.pools.max_tokens
    return prefill_graph_count(prefill_graph_limit(chunk, latent_kv=setup.latent, pp=degrees.pp, max_total_tokens=most))


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
