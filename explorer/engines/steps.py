"""What a step of vLLM's holds, as told or by the engine's defaults: tokens, requests, captured decode batches."""

from explorer.engines.settings import Settings
from explorer.request import Request
from layouts.serving.vllm_limits import Limits, capture_sizes, default_limits


def step_limits(settings: Settings, request: Request) -> Limits:
    """Tokens and requests of a step of one attention group; raises EngineRuleError for sizes that cannot be."""
    pools, cut = settings.pools, settings.degrees
    return default_limits(
        int(request.machine.memory_bytes),
        longest(settings, request),
        tokens=pools.chunk,
        requests=pools.max_running,
        chunked_prefill=pools.chunked_prefill,
        batched_experts=pools.low_latency and cut.exchange == "all_to_all" and cut.attn_dp > 1,
    )


def longest(settings: Settings, request: Request) -> int:
    """Tokens of the longest request that the server takes."""
    return settings.pools.context_length or request.model.context_limit


def decode_batches(settings: Settings, request: Request) -> tuple[int, ...]:
    """Captured decode batches in requests, ascending: sizes in tokens hold as many whole requests as fit."""
    pools, width = settings.pools, request.verify_width
    sizes = capture_sizes(
        step_limits(settings, request), query=width, largest=pools.graph_limit, explicit=pools.graph_sizes
    )
    return tuple(sorted({size // width for size in sizes if size >= width})) or (1,)
