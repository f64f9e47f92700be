"""KV pools of a rank: what the memory fraction leaves for them, and how many tokens that is. SGLang 0.5.23.

`bytes_a_token` is that of one rank over all of its layers that keep KV; under decode context parallelism a group holds
dcp times as many tokens as a rank.
"""

from math import ceil
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

_GIB: Final = 2**30
# Share of sliding layers over full layers, in tokens, where the command gives none.
DEFAULT_WINDOW_RATIO: Final = 0.8


def rest_for_pools(free_now: float, free_before: float, mem_fraction: float, reserved: float = 0) -> float:
    """Bytes for KV and state pools: what is free now, less the part of `free_before` outside the memory fraction.

    `free_before` is taken after the process groups exist and before weights load; `reserved` are multimodal caches
    that come later. Negative where the weights exceed their share. Source: `_profile_available_bytes`.
    """
    return free_now - free_before * (1 - mem_fraction) - reserved


def least_mem_fraction(free_now: float, free_before: float) -> float:
    """The memory fraction at which weights leave nothing for KV, rounded up to three digits as the engine suggests.

    The fraction must be above it. Source: the error of `_profile_available_bytes`.
    """
    if not 0 <= free_now <= free_before or not free_before:
        raise EngineRuleError(
            f"free memory {free_now / _GIB:.2f} GiB must lie between 0 and the {free_before / _GIB:.2f} GiB before the "
            "weights: take both from one log"
        )
    return ceil((1 - free_now / free_before) * 1000) / 1000


def kv_tokens(
    rest_bytes: float, bytes_a_token: int, page: int = 1, max_total_tokens: int | None = None, scratch_bytes: int = 0
) -> int:
    """Token slots of a rank's pool: whole pages that fit, not above the user's limit. Without the padding page.

    `rest_bytes` is what states have left; `scratch_bytes` a fixed buffer beside the pool (KV sharding). Pipeline stages
    take the smallest of theirs.
    Source: `DefaultPoolConfigurator.calculate_pool_sizes`, `_apply_token_constraints`. Raises where no page fits.
    """
    require_positive(bytes_a_token=bytes_a_token, page=page)
    tokens = int(max(rest_bytes - scratch_bytes, 0)) // bytes_a_token // page * page
    return _checked(_capped(tokens, page, max_total_tokens), rest_bytes, bytes_a_token * page)


def token_bytes(
    kv_bytes: int, layers: int, *, draft_layers: int = 0, index_bytes: int = 0, draft_index_bytes: int = 0, dcp: int = 1
) -> int:
    """Bytes of a token in a rank's pools, with a draft whose layers keep what the model's do (EAGLE, MTP, standalone).

    `kv_bytes` are those of the model's `layers`. With sparse attention `index_bytes` and `draft_index_bytes` are those
    of the index keys, which every rank of a DCP group keeps in full, as it does the draft's KV. Without sparse
    attention the engine counts the draft's KV once although it is allocated `dcp` times: the rest of it comes out of
    the reserve. Source: `DefaultPoolConfigurator.__init__`.
    """
    require_positive(kv_bytes=kv_bytes, layers=layers, dcp=dcp)
    require_not_negative(draft_layers=draft_layers, index_bytes=index_bytes, draft_index_bytes=draft_index_bytes)
    draft = kv_bytes * draft_layers // layers
    copies = dcp if index_bytes else 1
    return kv_bytes + (index_bytes + draft + draft_index_bytes) * copies


class WindowPools(NamedTuple):
    """Token slots of the layers that attend to everything and of those with a sliding window, for one rank."""

    full: int
    window: int

    @property
    def total(self) -> int:
        """What the engine reports as its number of tokens: the full layers', or the window's if there are no others."""
        return self.full or self.window


def window_pools(
    rest_bytes: float,
    full_bytes: int,
    window_bytes: int,
    window: int,
    *,
    ratio: float = DEFAULT_WINDOW_RATIO,
    page: int = 1,
    max_total_tokens: int | None = None,
    whole_draft_bytes: int = 0,
) -> WindowPools:
    """Two pools of a model whose layers alternate between full attention and a sliding `window`.

    `full_bytes` and `window_bytes` are those of a token over all layers of a kind, a draft's included (EAGLE);
    `whole_draft_bytes` those of a draft that keeps every token of the full pool. A model without full layers
    (`full_bytes` 0) has one pool and no ratio.
    Source: `HybridSWAPoolConfigurator`. Raises where no page fits or the window's pool cannot admit one request.
    """
    require_positive(window_bytes=window_bytes, window=window, page=page)
    require_not_negative(full_bytes=full_bytes, whole_draft_bytes=whole_draft_bytes)
    if not 0 < ratio <= 1:
        raise EngineRuleError(f"window ratio {ratio} must lie in (0, 1]: change --swa-full-tokens-ratio")
    if not full_bytes:
        return WindowPools(0, kv_tokens(rest_bytes, window_bytes + whole_draft_bytes, page, max_total_tokens))
    cell = full_bytes + whole_draft_bytes + ratio * window_bytes
    full = _checked(_capped(int(rest_bytes // cell) // page * page, page, max_total_tokens), rest_bytes, cell * page)
    return WindowPools(full, _admits(int(full * ratio) // page * page, window, page))


def window_tokens_needed(
    running: int,
    window: int,
    *,
    page: int = 1,
    verify_width: int = 1,
    step_tokens: int | None = None,
    chunk: int = 0,
    overlap: bool = True,
    eviction_interval: int = 128,
    extra_slots: int | None = None,
) -> int:
    """Window slots that `running` requests of a rank hold at most: the size of the pool without a prefix cache.

    Each keeps its window, the tokens between two evictions and a page, and what a step allocates (`step_tokens`, a page
    if None). A decode server (`extra_slots` given) adds a window for each arriving request, others the chunks in
    flight. Source: `compute_swa_request_cap`; it applies only with a limit on requests and the prefix cache off.
    """
    require_positive(running=running, window=window, page=page, verify_width=verify_width)
    each = window + eviction_interval * verify_width + page + (page if step_tokens is None else step_tokens)
    beside = (1 + overlap) * chunk + page if extra_slots is None else (window + page) * extra_slots
    return -(-(each * running + beside) // page) * page


def pools_beside_window(
    rest_bytes: float, full_bytes: int, window_bytes: int, needed: int, page: int = 1
) -> WindowPools:
    """Pools where the window's has exactly the `needed` slots of `window_tokens_needed`, and full layers get the rest.

    Source: `SWARequestCapPoolConfigurator`. Raises where no page of the full layers fits.
    """
    require_positive(full_bytes=full_bytes, window_bytes=window_bytes, needed=needed, page=page)
    return WindowPools(kv_tokens(rest_bytes - needed * window_bytes, full_bytes, page), needed)


def _capped(tokens: int, page: int, limit: int | None) -> int:
    return tokens if limit is None else min(tokens, limit) // page * page


def _checked(tokens: int, rest_bytes: float, page_bytes: float) -> int:
    if tokens < 1:
        raise EngineRuleError(
            f"{max(rest_bytes, 0) / _GIB:.2f} GiB hold no page of {page_bytes:.0f} B within the limits: raise the "
            "memory fraction or the token limit, or cut the model further"
        )
    return tokens


def _admits(tokens: int, window: int, page: int) -> int:
    if tokens <= window + page:
        raise EngineRuleError(
            f"{tokens} window slots hold no request, which needs more than window {window} + page {page}: raise "
            "--swa-full-tokens-ratio or the memory fraction"
        )
    return tokens
