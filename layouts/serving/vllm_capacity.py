"""How many blocks vLLM's pool has, what fits into it, and the two figures that the log prints of it.

The log's `GPU KV cache size: N tokens` is the maximum concurrency times the longest request, not what the pool holds:
of a hybrid model a request takes a fixed number of blocks besides those that grow with it. Rules of vLLM 0.33.0,
`v1/core/kv_cache_planning.py` and `kv_cache_utils.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive
from layouts.serving.vllm_groups import Group, Request, block_bytes, request_blocks
from layouts.serving.vllm_pages import Kind

_GIB: Final = 2**30
# The pool holds one block back as a target for writes that belong to no request: `BlockPool`.
NULL_BLOCKS: Final = 1


class Capacity(NamedTuple):
    """Requests of one length that run at once, and the tokens that they hold."""

    requests: int
    tokens: int


@dataclass(frozen=True)
class Pool:
    """The blocks of one GPU's pool for one cut into groups."""

    groups: tuple[Group, ...]
    blocks: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return block_bytes(self.groups)

    @property
    def usable(self) -> int:
        """Blocks that requests may hold."""
        return max(0, self.blocks - NULL_BLOCKS)


def pool(planned: Sequence[Group], kv_bytes: int, override: int | None = None) -> Pool:
    """The pool that `kv_bytes` of one GPU make, or one of `override` blocks (`--num-gpu-blocks-override`).

    All GPUs of an engine get as many blocks as the one with the fewest: pass the least of their `kv_bytes`, and with
    pipeline stages take the smallest pool. Source: `get_kv_cache_configs`.
    """
    require_not_negative(kv_bytes=kv_bytes)
    if override is not None:
        require_positive(num_gpu_blocks_override=override)
    return Pool(tuple(planned), kv_bytes // block_bytes(planned) if override is None else override)


def max_concurrency(of: Pool, request: Request) -> float:
    """Requests of `request.length` for which the pool has blocks, as a fraction: the `x` of the log's second figure.

    The null block counts here. Source: `get_max_concurrency_for_kv_cache_config`.
    """
    return of.blocks / request_blocks(of.groups, request)


def logged_tokens(of: Pool, request: Request) -> int:
    """The `GPU KV cache size` that the log prints: maximum concurrency x longest request. `get_kv_cache_capacity`."""
    return int(max_concurrency(of, request) * request.length)


def logged_tokens_by_groups(of: Pool, dcp: int = 1) -> int:
    """The `GPU KV cache size` of earlier logs: an equal share of the blocks for each group, times its smallest block.

    Up to vLLM 0.19 (vllm#40691 has both figures of one log and the formula); equal to `logged_tokens`, up to the
    rounding of a request to blocks, where there is one group.
    """
    require_positive(dcp=dcp)
    # a state block of that time spanned the longest request where states were not aligned, so attention's is the least
    smallest = min((c.block for g in of.groups for c in g.caches if c.kind is not Kind.STATE), default=1)
    return of.blocks // len(of.groups) * smallest * dcp


def capacity(of: Pool, request: Request) -> Capacity:
    """Whole requests of `request.length` that the usable blocks hold at once, and their tokens."""
    requests = of.usable // request_blocks(of.groups, request)
    return Capacity(requests, requests * request.length)


def longest_request(of: Pool, request: Request) -> int:
    """Tokens of the longest request, up to `request.length`, that the usable blocks hold; 0 where not one token fits.

    It is what the refusal prints as the estimated maximum model length, and what `--max-model-len auto` (-1) takes.
    Source: `_estimate_max_model_len_from_groups`, `_auto_fit_max_model_len`.
    """
    low, high = 0, request.length
    while low < high:
        middle = (low + high + 1) // 2
        if request_blocks(of.groups, replace(request, length=middle)) <= of.usable:
            low = middle
        else:
            high = middle - 1
    return low


def require_one_request(of: Pool, request: Request) -> None:
    """Raise `EngineRuleError` where the pool cannot hold one request of `request.length`, as vLLM does at start-up.

    Source: `_check_enough_kv_cache_memory`.
    """
    if of.usable < 1:
        raise EngineRuleError(
            f"no memory is left for KV blocks ({of.blocks} of {of.block_bytes / _GIB:.4f} GiB): "
            "raise --gpu-memory-utilization or use more GPUs"
        )
    needed = request_blocks(of.groups, request)
    if needed <= of.usable:
        return
    longest = longest_request(of, request)
    shorter = f"set --max-model-len to {longest} or less" if longest else "no shorter length fits"
    raise EngineRuleError(
        f"one request of {request.length} tokens needs {needed * of.block_bytes / _GIB:.2f} GiB of KV, "
        f"but {of.usable * of.block_bytes / _GIB:.2f} GiB are usable: {shorter}, or raise --gpu-memory-utilization"
    )
