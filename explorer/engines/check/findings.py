"""What in a command costs more than it gives, or will not hold: each with the flag and what a change buys."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor

from explorer.engines.command.launch import EngineName
from explorer.engines.sglang import COUNTS as SGLANG_COUNTS
from explorer.engines.sglang import DISPATCH_TOKENS
from explorer.engines.startup import Startup
from explorer.engines.startup.room import room
from explorer.engines.startup.sglang import server_settings
from explorer.engines.values import flag
from explorer.engines.vllm import COUNTS as VLLM_COUNTS
from hw.units import GIB, format_bytes
from layouts.serving.buffers import deepep_bytes_a_token, sent_width
from layouts.serving.requests import Clamp
from layouts.serving.reserve import default_mem_fraction
from layouts.serving.states import StateDemand, balanced_ratio
from layouts.serving.vllm_memory import DEFAULT_UTILISATION

_COUNTS = {EngineName.SGLANG: SGLANG_COUNTS, EngineName.VLLM: VLLM_COUNTS}
_SHARE = {EngineName.SGLANG: "mem_fraction_static", EngineName.VLLM: "gpu_memory_utilization"}
_WORTH = GIB // 8  # bytes below which nobody should change a command
_LEAST_STEP = 0.02  # of a share that is worth a change
_MOST_SHARE = 0.95  # beyond which no advice goes


class Kind(StrEnum):
    """WASTE takes memory that nothing uses; LIMIT is asked for and cannot be; RISK may stop the server."""

    WASTE = "waste"
    LIMIT = "limit"
    RISK = "risk"


@dataclass(frozen=True)
class Finding:
    """`frees` bytes a GPU and `tokens` more in each rank's KV pool, where that is what `change` buys."""

    kind: Kind
    flag: str
    says: str
    change: str
    frees: int = 0
    tokens: int = 0


def findings(up: Startup) -> tuple[Finding, ...]:
    """Everything found, in the order of the memory that it frees."""
    found = [
        *_running(up),
        *_context(up),
        *_extra_slots(up),
        *_dispatch(up),
        *_graphs(up),
        *_reserve(up),
        *_ratio(up),
    ]
    return tuple(sorted(found, key=lambda finding: -finding.frees))


def _name(up: Startup, field: str) -> str:
    return flag(_COUNTS[up.parts.setup.launch.engine][field])


def _tokens(up: Startup, size: int) -> int:
    return size // up.parts.token if up.parts.token else 0


def _running(up: Startup) -> Iterator[Finding]:
    """SGLang divides its limit among the groups of attention DP, but not among replicas; vLLM's is each group's own."""
    setup = up.parts.setup
    asked = setup.settings.pools.max_running
    groups = setup.layout.attn_dp if setup.launch.engine is EngineName.SGLANG else 1
    share = None if asked is None else max(1, asked // groups)
    if share is not None and up.running < share and up.clamp is not Clamp.MAX_RUNNING:
        pool = "state slots" if up.clamp is Clamp.STATE else f"KV for requests of {setup.request.context:,} tokens"
        stated = _COUNTS[setup.launch.engine]["max_running"] in setup.launch.values
        who = "asks for" if stated else "is by the engine's default"
        says = f"{who} {share:,} requests an attention group, {pool} hold {up.running:,}"
        yield Finding(Kind.LIMIT, _name(up, "max_running"), says, f"{up.running * groups:,}")


def _context(up: Startup) -> Iterator[Finding]:
    """An engine accepts a length that its pool cannot hold, and fails on the request."""
    asked = up.parts.setup.settings.pools.context_length or up.parts.setup.request.model.context_limit
    if up.starts and up.longest < asked:
        says = f"allows {asked:,} tokens, the KV pool holds {up.longest:,}"
        yield Finding(Kind.LIMIT, _name(up, "context_length"), says, f"{up.longest:,}")


def _extra_slots(up: Startup) -> Iterator[Finding]:
    setup = up.parts.setup
    extra = setup.settings.pools.extra_slots or 0
    slot = up.parts.state
    size = extra * (slot.bytes if slot else 0)
    if size > _WORTH:
        says = f"{extra} slots of {format_bytes(slot.bytes if slot else 0)} for requests on their way from prefill"
        yield Finding(Kind.WASTE, flag("disaggregation_decode_extra_slots"), says, "as many as arrive in a step", size)


def _dispatch(up: Startup) -> Iterator[Finding]:
    """DeepEP's low-latency buffer holds as many rows a rank as it is told, for every expert of the model. Too few for
    the requests asked is a risk; more than the most that are ever admitted, of whatever length, is waste."""
    setup = up.parts.setup
    asked, layout = setup.request.dispatch_tokens, setup.layout
    if asked is None or layout.dispatch != "all_to_all" or setup.request.prefill or not up.starts:
        return
    needed, most = (_rows(up, requests) for requests in (up.running, up.admitted))
    if needed > asked:
        says = f"{needed} rows a rank leave a step of {up.running} requests, the buffer takes {asked}"
        yield Finding(Kind.RISK, DISPATCH_TOKENS, says, f"{needed}")
        return
    moes = [layer.ffn for layer in setup.request.model.kinds if layer.experts]
    experts = moes[0].experts + setup.settings.pools.redundant_experts  # pyright: ignore[reportAttributeAccessIssue]
    width = sent_width(moes[0].width)  # pyright: ignore[reportAttributeAccessIssue]
    size = (asked - most) * deepep_bytes_a_token(width, experts)
    if size > _WORTH and setup.launch.engine is EngineName.SGLANG:
        says = f"{asked} rows a rank, a step of {up.admitted} requests sends {most}"
        yield Finding(Kind.WASTE, DISPATCH_TOKENS, says, f"{most}", size, _tokens(up, size))


def _rows(up: Startup, requests: int) -> int:
    """Rows that a rank sends in a step of so many requests of its group."""
    setup = up.parts.setup
    return ceil(ceil(requests / setup.layout.pp) * setup.request.verify_width / setup.layout.attn_tp)


def _graphs(up: Startup) -> Iterator[Finding]:
    """A decode graph of more requests than are ever admitted is not replayed. vLLM replays graphs for prompts too."""
    setup = up.parts.setup
    pools = setup.settings.pools
    largest = max(pools.graph_sizes) if pools.graph_sizes else pools.graph_limit
    if setup.launch.engine is EngineName.VLLM or not pools.graphs or largest is None or not up.starts:
        return
    if largest > up.admitted > 0:
        says = f"captures batches up to {largest}, at most {up.admitted} requests run in a group"
        yield Finding(Kind.WASTE, _name(up, "graph_limit"), says, f"{up.admitted}")


def _reserve(up: Startup) -> Iterator[Finding]:
    """What the share leaves, against what lives there at most. No advice goes below the engine's own default."""
    if not up.starts:
        return
    name, over = flag(_SHARE[up.parts.setup.launch.engine]), up.left - room(up)
    if up.left < up.reserved:
        enough = floor(1000 * (up.share - (up.reserved_high - up.left) / up.free)) / 1000
        default = _default_share(up)
        share = enough if default >= up.share else max(enough, default)
        says = f"leaves {format_bytes(max(up.left, 0))} for graphs and buffers of {format_bytes(up.reserved)}"
        yield Finding(Kind.RISK, name, says, f"{share:.3f}")
    elif not up.parts.setup.settings.pools.max_tokens:
        share = min(floor(100 * (up.share + over / up.free)) / 100, _MOST_SHARE)
        says = f"leaves {format_bytes(up.left)}, graphs and buffers take {format_bytes(up.reserved_high)} at most"
        freed = int((share - up.share) * up.free)
        if share >= up.share + _LEAST_STEP:
            yield Finding(Kind.WASTE, name, says, f"{share:.2f}", freed, _tokens(up, freed))


def _default_share(up: Startup) -> float:
    if up.parts.setup.launch.engine is EngineName.VLLM:
        return DEFAULT_UTILISATION
    return default_mem_fraction(up.parts.total, server_settings(up.parts.setup, up.parts))


def _ratio(up: Startup) -> Iterator[Finding]:
    """State and KV pools that would run out together admit the most."""
    setup, slot = up.parts.setup, up.parts.state
    pools = setup.settings.pools
    by_ratio = pools.state_slots is None and pools.prefix_cache and up.state_slots is not None
    if slot is None or not by_ratio or not up.starts or not up.parts.token:
        return
    width = up.verify_bytes and setup.request.verify_width
    demand = StateDemand(slot.bytes, verify_width=int(width), slots_a_request=up.slots_a_request)
    best = balanced_ratio(demand, up.parts.token, setup.request.context, dcp=setup.layout.dcp)
    by_state = (up.state_slots or 0) // up.slots_a_request
    by_kv = up.group_tokens // setup.request.context
    if up.clamp is Clamp.MAX_RUNNING:
        return
    if min(by_state, by_kv) * 1.25 < max(by_state, by_kv):
        says = f"state slots admit {by_state:,} requests, KV {by_kv:,} of {setup.request.context:,} tokens"
        yield Finding(Kind.WASTE, "--mamba-full-memory-ratio", says, f"{best:.2g}")
