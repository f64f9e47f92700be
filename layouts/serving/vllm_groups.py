"""How vLLM cuts the layers of a hybrid model into groups that draw blocks from one pool.

All layers of a group share a block table; a block of the pool belongs to one group at a time, so it is as large as the
largest group's pages. Rules of vLLM 0.33.0, `v1/core/kv_cache_planning.py`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive
from layouts.serving.vllm_pages import Cache, Kind

# A type's layers are not split where the largest type is less than this times the smallest.
_UNSPLIT = 1.5


@dataclass(frozen=True)
class Request:
    """What the blocks of a request depend on.

    `length` in tokens, the draft's included; `in_flight` are the tokens that may be scheduled and not yet settled
    (`vllm_limits.in_flight_tokens`); `dcp` ranks share the tokens of full attention.
    """

    length: int
    in_flight: int = 0
    dcp: int = 1

    def __post_init__(self) -> None:
        require_positive(length=self.length, dcp=self.dcp)
        require_not_negative(in_flight=self.in_flight)


@dataclass(frozen=True)
class Group:
    """Layers that share a block table: the caches of one type, each with the layers that fall into this group."""

    caches: tuple[Cache, ...]

    @property
    def layers(self) -> int:
        return sum(cache.layers for cache in self.caches)

    @property
    def block_bytes(self) -> int:
        """Bytes of this group's pages in one block on this GPU."""
        return sum(cache.held * cache.page_bytes for cache in self.caches)

    def blocks(self, request: Request) -> int:
        """Blocks that a request takes from the pool for this group: caches of one type take equally many."""
        return cache_blocks(self.caches[0], request)


def cache_blocks(cache: Cache, request: Request) -> int:
    """Blocks of one layer for a request.

    A full cache holds ceil of the DCP share of the length; a window what is inside it and in flight, and one block for
    the window's start; a state its slots, whole on every DCP rank. Source: `max_memory_usage_bytes` of the specs.
    """
    if cache.kind is Kind.STATE:
        return cache.slots
    dcp = request.dcp if cache.dcp_sharded else 1
    if cache.kind is Kind.FULL:
        return math.ceil(math.ceil(request.length / dcp) / cache.block)
    if dcp > 1:
        raise EngineRuleError(f"a window of {cache.window} tokens cannot be cut over DCP {dcp}: set DCP to 1")
    return math.ceil(min(cache.window - 1 + request.in_flight, request.length) / cache.block) + 1


def groups(caches: Iterable[Cache], *, block_outermost: bool = False) -> tuple[Group, ...]:
    """The groups of a model's layers, in the order in which their types come.

    Layers of one type (the same growth and block, whatever their pages) are one group. Several types are brought to
    one page size and cut into groups of equally many layers; with `block_outermost` (kernels that lay out a block's
    layers side by side, such as those of compressed attention) pages of different sizes are packed instead.
    Source: `get_kv_cache_groups`. Raises `EngineRuleError` for pages that cannot be made equal.
    """
    merged = _merged(caches)
    if not merged:
        raise EngineRuleError("no layer keeps a cache: a model without attention has no pool to plan")
    if len({_type(cache) for cache in merged}) == 1:
        return (Group(merged),)
    if block_outermost and len({cache.page_bytes for cache in merged}) > 1:
        return _packed(merged)
    if _needs_full_allocation(merged):
        return groups(without_windows(merged))
    return _equal_groups(_merged(_equal_pages(merged)))


def without_windows(caches: Iterable[Cache]) -> tuple[Cache, ...]:
    """The caches where window layers keep all tokens, as with `--disable-hybrid-kv-cache-manager`.

    Their block becomes that of the full layers; without full layers nothing changes.
    Source: `_promote_local_kv_cache_specs`.
    """
    caches = tuple(caches)
    full = next((cache.block for cache in caches if cache.kind is Kind.FULL), None)
    if full is None:
        return caches
    return tuple(
        replace(c, kind=Kind.FULL, window=0, block=full, page_bytes=c.page_bytes * full // c.block)
        if c.kind is Kind.WINDOW
        else c
        for c in caches
    )


def block_bytes(planned: Sequence[Group]) -> int:
    """Bytes of one block of the pool on this GPU: those of the largest group. `_get_kv_cache_bytes_per_block`."""
    return max(group.block_bytes for group in planned)


def request_blocks(planned: Sequence[Group], request: Request) -> int:
    """Blocks that a request takes from the pool, over all groups. `get_max_concurrency_for_kv_cache_config`."""
    return sum(group.blocks(request) for group in planned)


def _type(cache: Cache) -> tuple[object, ...]:
    """Caches that always need equally many blocks: they may share a block table. `UniformTypeKVCacheSpecs`."""
    page = cache.page_bytes if cache.kind is Kind.STATE else None
    latent_window = cache.latent and cache.kind is Kind.WINDOW
    return cache.kind, cache.block, cache.window, cache.slots, cache.dcp_sharded, page, latent_window


def _merged(caches: Iterable[Cache]) -> tuple[Cache, ...]:
    found: dict[Cache, tuple[int, int]] = {}
    for cache in caches:
        key = replace(cache, layers=1, stage_layers=None)
        layers, held = found.get(key, (0, 0))
        found[key] = (layers + cache.layers, held + cache.held)
    return tuple(replace(key, layers=n, stage_layers=None if held == n else held) for key, (n, held) in found.items())


def _cut(cache: Cache, parts: int, part: int) -> Cache:
    """The layers of a cache that fall into one of `parts` groups: every `parts`-th of them.

    A pipeline stage's run of layers may begin anywhere, so each group is given the most that it can hold there.
    """
    held = None if cache.stage_layers is None else math.ceil(cache.stage_layers / parts)
    layers = math.ceil((cache.layers - part) / parts)
    return replace(cache, layers=layers, stage_layers=None if held is None else min(held, layers))


def _needs_full_allocation(caches: Sequence[Cache]) -> bool:
    """Latent pages that cannot be raised beside windows of plain attention: the windows are then kept in full.

    Source: `_try_get_full_allocation_fallback_groups`.
    """
    largest = max(cache.page_bytes for cache in caches)
    stuck = any(_fixed_rows(c) and largest % c.page_bytes for c in caches)
    windows = [c for c in caches if c.kind is Kind.WINDOW]
    only_attention = all(c.kind is not Kind.STATE for c in caches)
    one_block = len({c.block for c in caches if c.kind is Kind.FULL}) == 1
    return stuck and bool(windows) and not any(c.latent for c in windows) and only_attention and one_block


def _fixed_rows(cache: Cache) -> bool:
    """A page that kernels address by whole rows, so that it cannot be padded."""
    return cache.latent and cache.kind is Kind.FULL


def _equal_pages(caches: Sequence[Cache]) -> tuple[Cache, ...]:
    """Pages of one size: larger blocks where the size divides, padding elsewhere. `unify_kv_cache_spec_page_size`."""
    largest = max(cache.page_bytes for cache in caches)
    return tuple(_raised(cache, largest) for cache in caches)


def _raised(cache: Cache, page: int) -> Cache:
    if cache.page_bytes == page:
        return cache
    padded = replace(cache, page_bytes=page, padding=cache.padding + page - cache.page_bytes)
    if cache.kind is Kind.STATE:
        return padded
    if page % cache.page_bytes == 0:
        return replace(cache, page_bytes=page, block=cache.block * (page // cache.page_bytes))
    if _fixed_rows(cache):
        raise EngineRuleError(
            f"a latent page of {cache.page_bytes} B does not divide the largest page of {page} B and cannot be padded: "
            "choose a block size at which it does"
        )
    return padded


def _equal_groups(caches: Sequence[Cache]) -> tuple[Group, ...]:
    """Groups of as many layers as the smallest type has (the largest, if that is less than half as many again)."""
    fewest, most = min(c.layers for c in caches), max(c.layers for c in caches)
    size = most if most < fewest * _UNSPLIT else fewest
    return tuple(
        Group((_cut(cache, parts, part),))
        for cache in caches
        for parts in [math.ceil(cache.layers / size)]
        for part in range(parts)
    )


def _packed(caches: Sequence[Cache]) -> tuple[Group, ...]:
    """Groups whose pages of different sizes lie side by side in a block. `_get_packed_kv_cache_groups`."""
    buckets: dict[tuple[object, ...], list[Cache]] = {}
    for cache in caches:
        buckets.setdefault(_type(cache), []).append(cache)
    repeats = _repeats(list(buckets.values()))
    counts = [_parts(bucket, repeats) for bucket in buckets.values()]
    anchor = max(
        _widest(bucket, sum(c.layers for c in bucket) if _is_state(bucket, repeats) else parts)
        for bucket, parts in zip(buckets.values(), counts, strict=True)
    )
    planned: list[Group] = []
    for bucket, parts in zip(buckets.values(), counts, strict=True):
        if _is_state(bucket, repeats):
            fitting = max(anchor // bucket[0].page_bytes, 1)
            parts = max(parts, math.ceil(sum(c.layers for c in bucket) / fitting))
        if parts > 1 and (not _balanced(bucket) or parts > bucket[0].layers):
            raise EngineRuleError(
                f"states of {len(bucket)} page sizes cannot be cut into {parts} groups: choose a larger block size"
            )
        planned += [Group(tuple(_cut(c, parts, part) for c in bucket)) for part in range(parts)]
    return tuple(planned)


def _balanced(bucket: Sequence[Cache]) -> bool:
    return len({cache.layers for cache in bucket}) == 1


def _repeats(buckets: Sequence[Sequence[Cache]]) -> int:
    """Repeats of the layer pattern in a group: those that waste the fewest, 0 where no bucket mixes page sizes."""
    mixed = [bucket[0].layers for bucket in buckets if _balanced(bucket) and len(bucket) > 1]
    if not mixed:
        return 0
    counts = [bucket[0].layers for bucket in buckets if _balanced(bucket)]
    choices = range(max(mixed), max(counts) + 1)
    return min(choices, key=lambda size: (sum(-count % size for count in counts), -size))


def _parts(bucket: Sequence[Cache], repeats: int) -> int:
    return math.ceil(bucket[0].layers / repeats) if repeats and _balanced(bucket) else 1


def _is_state(bucket: Sequence[Cache], repeats: int) -> bool:
    return bucket[0].kind is Kind.STATE or (not repeats and bucket[0].kind is Kind.WINDOW)


def _widest(bucket: Sequence[Cache], parts: int) -> int:
    return sum(math.ceil(cache.layers / parts) * cache.page_bytes for cache in bucket)
