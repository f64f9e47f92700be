"""vLLM's start: its share of the whole GPU less all that it measured, in blocks that hybrid models share."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from explorer.engines.setup import Setup
from explorer.engines.startup.compressed import COMPRESSED_BLOCK, compressed_caches
from explorer.engines.startup.found import Given, Startup
from explorer.engines.startup.parts import Parts
from explorer.engines.steps import longest as longest_length
from explorer.engines.steps import step_limits
from explorer.residents.estimates import GRAPHS, trial_step
from explorer.residents.line import Group
from layouts.csa import CSA
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.serving.errors import EngineRuleError
from layouts.serving.requests import Clamp
from layouts.serving.vllm_capacity import Pool, capacity, logged_tokens, longest_request, max_concurrency, pool
from layouts.serving.vllm_capacity import require_one_request as require_one
from layouts.serving.vllm_groups import Request, groups
from layouts.serving.vllm_limits import in_flight_tokens
from layouts.serving.vllm_memory import DEFAULT_UTILISATION, Measured, kv_budget
from layouts.serving.vllm_pages import DEFAULT_BLOCK, Cache, Kind, StateMode, aligned_block, state_slots

_LATENT_BLOCK: Final = 64  # of the latent decode kernels, where no block size is given


def start(setup: Setup, given: Given) -> Startup:
    """What a start allocates. A pool that cannot hold one longest request is a refusal, as the engine makes it."""
    parts, pools = Parts(setup), setup.settings.pools
    utilisation = DEFAULT_UTILISATION if pools.share is None else pools.share
    weights = parts.weights if given.weights is None else given.weights
    limits = step_limits(setup.settings, setup.request)
    peak = trial_step(limits.max_num_batched_tokens)
    reserved, most = parts.reserved(peak)
    refusal, held, budget = None, None, 0
    longest = Request(longest_length(setup.settings, setup.request), _in_flight(setup), setup.layout.dcp)
    wanted = Request(min(setup.request.context, longest.length), longest.in_flight, longest.dcp)
    try:
        budget = _budget(setup, parts, weights, utilisation, peak[0]) if given.budget is None else given.budget
        budget = given.pool or pools.kv_bytes or budget
        held = planned(setup, parts, budget)
        require_one(held, longest)
    except EngineRuleError as error:
        refusal = str(error)
    limit = limits.max_num_seqs
    fits = capacity(held, wanted).requests if held is not None else 0
    blocks = 0 if held is None else held.blocks * held.block_bytes
    tokens = 0 if held is None else _pool_tokens(held, wanted)
    return Startup(
        parts=parts,
        share=utilisation,
        share_source="the engine's default" if pools.share is None else "--gpu-memory-utilization",
        free=parts.free if given.free is None else given.free,
        weights=weights,
        budget=budget,
        state_slots=None,
        slots_a_request=1,
        state_bytes=0,
        verify_bytes=0,
        window_bytes=0,
        draft_bytes=0,
        kv_bytes=blocks,
        kv_tokens=tokens // setup.layout.dcp,
        group_tokens=tokens,
        admitted=limit,
        running=min(limit, fits),
        clamp=Clamp.MAX_RUNNING if limit <= fits else Clamp.KV,
        longest=0 if held is None else longest_request(held, longest),
        left=(parts.free if given.free is None else given.free) - weights - max(blocks, 0),
        reserved=reserved,
        reserved_high=most,
        groups=setup.layout.replicas * setup.layout.attn_dp,
        logged_tokens=None if held is None else logged_tokens(held, longest),
        logged_concurrency=None if held is None else max_concurrency(held, longest),
        refusal=refusal,
    )


def planned(setup: Setup, parts: Parts, kv_bytes: int, block: int | None = None) -> Pool:
    """The blocks that `kv_bytes` of one GPU make, cut into groups. `block`: tokens of one where a log of another
    version says them. Raises EngineRuleError where nothing is cached."""
    caches = _caches(setup, parts, block or _block(setup, parts))
    cut = groups(caches, block_outermost=parts.compressed is not None)
    return pool(cut, max(kv_bytes, 0), setup.settings.pools.blocks)


def _in_flight(setup: Setup) -> int:
    return in_flight_tokens(step_limits(setup.settings, setup.request).max_num_batched_tokens, setup.layout.pp)


def _budget(setup: Setup, parts: Parts, weights: int, utilisation: float, peak: int) -> int:
    """Bytes for KV. The peak of the trial step and the graphs are estimates of the ledger."""
    groups_ = sum(parts.books.size(line) for line in parts.books.lines if line.group is Group.START)
    graphs = parts.line(GRAPHS) if setup.settings.pools.graphs else 0
    buffers = parts.line("DeepEP buffer")
    driver = parts.total - int(setup.request.machine.free_bytes)
    measured = Measured(
        parts.total,
        weights,
        groups_ + buffers + driver,
        peak,
        graphs,
    )
    return kv_budget(measured, utilisation).kv


def _pool_tokens(held: Pool, request: Request) -> int:
    """Tokens of requests of one length that the pool holds, fractions of a request included."""
    return int(max_concurrency(held, request) * request.length)


def _caches(setup: Setup, parts: Parts, block: int) -> Iterator[Cache]:
    """What each kind of layer keeps."""
    model, numbers = setup.request.model, parts.numbers
    kv = model.precision["kv"].name
    for kind, layer in enumerate(model.kinds):
        attention, held = layer.attention, int(numbers[f"layers_{kind}"])
        whole = model.kind_counts[kind]
        if isinstance(attention, CSA):
            yield from compressed_caches(attention, whole, held, block, kv)
            continue
        if isinstance(attention, KDA):
            yield Cache(
                Kind.STATE, whole, block, _state_page(setup, attention, numbers), slots=_slots(setup), stage_layers=held
            )
            continue
        token = attention.kv_bytes(kv).bytes(numbers)
        latent = isinstance(attention, MLA)
        window = attention.window if isinstance(attention, GQA) else 0
        shape = Kind.WINDOW if window else Kind.FULL
        yield Cache(shape, whole, block, block * token, latent=latent, window=window, stage_layers=held)
        if latent and attention.indexer is not None and attention.indexer.key_bytes:
            yield Cache(Kind.FULL, whole, block, block * attention.indexer.key_bytes, stage_layers=held)


def _state_page(setup: Setup, attention: KDA, numbers: Mapping[str, Fraction]) -> int:
    """The recurrence, and the convolution's inputs with one more for each draft token."""
    kind = setup.request.model.precision["state"].name
    inputs = attention.conv_kernel - 1
    drafts = setup.request.verify_width - 1
    bare = attention.state_bytes(0, kind)
    window = attention.state_bytes(1, kind) + bare * -1
    return (bare + window * drafts / inputs).bytes(numbers)


def _slots(setup: Setup) -> int:
    """State blocks of a request; the prefix cache keeps states at block ends (0.33.0, `MambaModelConfig`)."""
    pools = setup.settings.pools
    mode = StateMode.ALIGN if pools.prefix_cache else StateMode.NONE
    return state_slots(mode, setup.request.verify_width - 1, replay=pools.replay_state)


def _block(setup: Setup, parts: Parts) -> int:
    """Tokens of a block. With states in the model, it is raised to hold one."""
    model = setup.request.model
    usual = _LATENT_BLOCK if setup.latent else DEFAULT_BLOCK
    stated = setup.settings.pools.page or (usual if parts.compressed is None else COMPRESSED_BLOCK)
    states = [la.attention for la in model.kinds if isinstance(la.attention, KDA)]
    tokens = [
        la.attention.kv_bytes(model.precision["kv"].name) for la in model.kinds if not isinstance(la.attention, KDA)
    ]
    if not states or not tokens:
        return stated
    page = max(_state_page(setup, a, parts.numbers) for a in states)
    return aligned_block(min(t.bytes(parts.numbers) for t in tokens), page, block=stated, latent=setup.latent)
