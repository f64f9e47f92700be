"""DP attention: how the ranks' rows are brought to one shape before the experts."""

from collections.abc import Sequence
from enum import StrEnum

from layouts.serving.errors import EngineRuleError, require_positive


class Padding(StrEnum):
    """MAX_LEN pads every rank to the longest and all-gathers; SUM_LEN packs them and all-reduces a zeroed buffer."""

    MAX_LEN = "max_len"
    SUM_LEN = "sum_len"


def aligned_counts(counts: Sequence[int], attn_tp: int) -> tuple[int, ...]:
    """Token rows of each DP rank, rounded up to the attention TP width that may reduce-scatter them."""
    require_positive(attn_tp=attn_tp)
    if not counts or min(counts) < 0:
        raise EngineRuleError(f"row counts {tuple(counts)} must be one non-negative integer a DP rank: correct them")
    return tuple(-(-count // attn_tp) * attn_tp for count in counts)


def padding_mode(
    counts: Sequence[int],
    extend: bool,
    graph: bool,
    *,
    recurrent: bool = False,
    fits_custom_all_reduce: bool = False,
) -> Padding:
    """The padding of one step, from the aligned row counts of its DP ranks.

    `extend`: some rank prefills. `graph`: the step replays a decode graph. `recurrent`: the model keeps a state that an
    idle rank must not lose, so that a prefill with an idle rank pads to the longest. `fits_custom_all_reduce`: no
    all-to-all backend, no speculation, and the packed rows fit the custom all-reduce buffer.

    Source: SGLang 0.5.23, `DpPaddingMode`.
    """
    width = len(counts)
    if width == 0:
        raise EngineRuleError("there are no row counts: give one a DP rank")
    small = fits_custom_all_reduce and width > 1 and min(counts) > 0
    if graph:
        return Padding.SUM_LEN if small else Padding.MAX_LEN
    if extend and width > 1:
        return Padding.MAX_LEN if recurrent and min(counts) == 0 else Padding.SUM_LEN
    if small:
        return Padding.SUM_LEN
    # an all-reduce moves each row twice; ties go to the gather, which may use symmetric memory
    return Padding.MAX_LEN if 2 * sum(counts) >= max(counts) * width else Padding.SUM_LEN


def buffer_rows(mode: Padding, counts: Sequence[int]) -> int:
    """Token rows of the gathered buffer on every rank, real and padded."""
    return len(counts) * max(counts) if mode is Padding.MAX_LEN else sum(counts)


def effective_chunk(chunk: int, attn_dp: int) -> int:
    """Prompt tokens that one DP rank prefills in a step: the chunk is divided over the attention DP groups."""
    require_positive(chunk=chunk, attn_dp=attn_dp)
    if chunk < attn_dp:
        raise EngineRuleError(f"a prefill chunk of {chunk} leaves no token for {attn_dp} DP groups: raise the chunk")
    return chunk // attn_dp
