"""Pools of compressed attention in SGLang: rows of the whole context, windows, and states of unfinished rows.

A token of the pool is one of the context; its compressed rows, index keys and, by a ratio, its window slots and states
come with it. Rules of SGLang 0.5.23, `DSV4PoolConfigurator` in `model_executor/pool_configurator.py`, for the packed
fp8 rows; without its unified pools, replay of windows, online compression and HiSparse.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

_GIB: Final = 2**30
PAGE: Final = 256  # tokens of a page, the one size that its kernels take
# Window slots a token where neither the command nor a bound on requests says: `DSV4_DEFAULT_SWA_FULL_TOKENS_RATIO`.
COMPRESSED_WINDOW_RATIO: Final = 0.1
# Requests of all attention groups where the command does not say: `apply_deepseek_v4_defaults`.
COMPRESSED_RUNNING: Final = 256
# Prefixes kept for each request, of which the window must stay: `_resolve_swa_prefix_tails`.
_TAILS: Final = 4
_FOUR, _MANY = 4, 128  # tokens of a row
_FP32 = 4


@dataclass(frozen=True)
class CompressedLayers:
    """Layers of a pipeline stage: all of them, those with a row every 4 tokens, those with one every 128.

    `row` bytes of a row, `head` its values, `index` those of an index key, `index_row` the key's bytes. Pages of rows
    are padded to `align` bytes: 576 for rows of 584; 512 for those of 528 that SGLang packs on SM100 (`KVLayout`).
    """

    layers: int
    four: int
    many: int
    row: int
    head: int
    index: int
    index_row: int
    align: int = 576

    def __post_init__(self) -> None:
        require_positive(layers=self.layers, row=self.row, head=self.head, align=self.align)
        require_not_negative(four=self.four, many=self.many, index=self.index, index_row=self.index_row)
        if self.four + self.many > self.layers:
            raise EngineRuleError(f"{self.four} + {self.many} layers with compressed rows are more than {self.layers}")

    @property
    def four_state(self) -> int:
        """Bytes of one token's state in all layers of ratio 4: fp32 value and score in two halves, and the index's."""
        return self.four * 4 * (self.head + self.index) * _FP32

    @property
    def many_state(self) -> int:
        """Bytes of one token's state in all layers of ratio 128."""
        return self.many * 2 * self.head * _FP32


@dataclass(frozen=True)
class CompressedPools:
    """Pools of one rank: tokens of the context and window slots, and the bytes of each part."""

    tokens: int
    window_slots: int
    token_bytes: Fraction
    window_bytes: Fraction
    state_bytes: int


def window_cap(
    running: int,
    window: int,
    chunk: int,
    *,
    verify_width: int = 1,
    step_tokens: int | None = None,
    overlap: bool = True,
    prefix_cache: bool = True,
    eviction_interval: int = 128,
    extra_slots: int | None = None,
    page: int = PAGE,
) -> int:
    """Window slots set aside for `running` requests of a group and for the prefixes kept beside them.

    `step_tokens` are what a request takes in a step (a page if None); a decode server (`extra_slots` given) counts
    arriving requests, others the `chunk` (tokens, of a group) in flight. Source: `compute_swa_request_cap`,
    `_resolve_swa_cap_tokens`.
    """
    require_positive(running=running, window=window, page=page, verify_width=verify_width)
    each = window + eviction_interval * verify_width + page + (page if step_tokens is None else step_tokens)
    beside = (1 + overlap) * chunk + page if extra_slots is None else (window + page) * extra_slots
    tails = _TAILS * running * (window + page) if prefix_cache else 0
    return ceil((each * running + beside + tails) / page) * page


def compressed_pools(
    rest_bytes: float,
    layers: CompressedLayers,
    running: int,
    *,
    window_slots: int | None,
    ratio: float = COMPRESSED_WINDOW_RATIO,
    window: int = 128,
    drafts: bool = False,
    extra_slots: int = 0,
    max_total_tokens: int | None = None,
    page: int = PAGE,
) -> CompressedPools:
    """Pools out of `rest_bytes` for at most `running` requests of a group.

    `window_slots` of `window_cap`, or None: the windows then get `ratio` slots a token. A draft (`drafts`) doubles the
    states kept and is counted as one layer more. Raises where no page fits or the windows admit no request.
    Source: `calculate_pool_sizes`.
    """
    require_positive(running=running, page=page, window=window)
    if not 0 < ratio <= 1:
        raise EngineRuleError(f"window ratio {ratio} must lie in (0, 1]: change --swa-full-tokens-ratio")
    grown = Fraction(layers.layers + drafts, layers.layers)
    four_ring, many_ring = (16, 256) if drafts else (8, 128)
    slot = (_paged(layers, page) * layers.layers + Fraction(four_ring, page) * layers.four_state) * grown
    four = _paged(layers, page // _FOUR) / _FOUR + Fraction(layers.index_row, _FOUR)
    many = _paged(layers, page // _MANY) / _MANY
    token = (four * layers.four + many * layers.many) * grown
    rows = (running + extra_slots + 1) * many_ring + many_ring + 1
    state = ceil(rows / _MANY) * _MANY * layers.many_state
    fixed = state + (0 if window_slots is None else window_slots * slot)
    rate = token + (Fraction(str(ratio)) * slot if window_slots is None else 0)
    tokens = int(max(Fraction(rest_bytes) - fixed, 0) / rate) // page * page
    if max_total_tokens is not None:
        tokens = min(tokens, max_total_tokens) // page * page
    if tokens < 1:
        raise EngineRuleError(
            f"{max(rest_bytes, 0) / _GIB:.2f} GiB hold no page beside windows and states of {float(fixed) / _GIB:.2f} "
            "GiB: lower --max-running-requests or --swa-prefix-tails, or raise --mem-fraction-static"
        )
    slots = int(tokens * Fraction(str(ratio))) // page * page if window_slots is None else window_slots
    if window_slots is None and slots <= window + page:
        raise EngineRuleError(
            f"{slots} window slots hold no request, which needs more than window {window} + page {page}: raise "
            "--swa-full-tokens-ratio or --mem-fraction-static"
        )
    return CompressedPools(tokens, slots, token, slot, state)


def token_bytes_older(
    layers: CompressedLayers,
    *,
    ratio: float = COMPRESSED_WINDOW_RATIO,
    window: int = 128,
    drafts: bool = False,
    states_by_request: bool = False,
) -> Fraction:
    """Bytes of a token in builds of spring and summer 2026: rows without padding, windows by the ratio alone, states
    for each `window` slots instead of a page.

    `states_by_request`: those of ratio 128 are apart, as from SGLang pull request 28612 on. A draft is counted as one
    layer more. Source: `_get_bytes_per_full_token` before pull requests 28612 and 40337.
    """
    require_positive(window=window)
    four_ring, many_ring = (16, 256) if drafts else (8, 128)
    states = Fraction(four_ring, window) * layers.four_state
    if not states_by_request:
        states += Fraction(many_ring, window) * layers.many_state
    rows = Fraction(layers.row + layers.index_row, _FOUR) * layers.four + Fraction(layers.row, _MANY) * layers.many
    held = rows + Fraction(str(ratio)) * (layers.row * layers.layers + states)
    return held * Fraction(layers.layers + drafts, layers.layers)


def _paged(layers: CompressedLayers, page: int) -> Fraction:
    """Bytes of a row with its share of the page's padding."""
    return Fraction(ceil(layers.row * page / layers.align) * layers.align, page)
