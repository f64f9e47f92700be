"""Buffers and tables whose bytes follow from a closed form: DeepEP, request tables, slot maps, slots."""

from typing import Final

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

# One fp32 scale for each 128 values of a dispatched row; one 16-byte header a message. DeepEP, low-latency layout.
_SCALE_GROUP: Final = 128
_HEADER: Final = 16
_INT32: Final = 4
_INT64: Final = 8
# The largest RDMA buffer that DeepEP opens (vllm issue 57894: 31.94 GiB starts, 32.21 GiB does not).
DEEPEP_LARGEST_BUFFER: Final = 32 * 2**30


def deepep_bytes_a_token(width: int, experts: int) -> int:
    """Bytes of the low-latency buffer for each token a rank may dispatch; `width` values are sent a token.

    Two halves of send and receive space, each of one message an expert (redundant ones included). The buffer is linear
    in the tokens: `deepep_buffer_bytes` adds the counters. Source: DeepEP `LowLatencyLayout`.
    """
    require_positive(width=width, experts=experts)
    if width % _SCALE_GROUP:
        raise EngineRuleError(
            f"DeepEP scales groups of {_SCALE_GROUP} values, so width {width} must be a multiple of it"
        )
    scales = width // _SCALE_GROUP * 4
    dispatch = _HEADER + max(2 * width, width + scales)
    combine = 2 * width + scales
    send = max(dispatch, experts * combine)
    receive = experts * max(dispatch, combine)
    return 2 * (send + receive)


def deepep_counter_bytes(experts: int) -> int:
    """Bytes of the two arrays of arrival counters, each padded to 128 bytes."""
    require_positive(experts=experts)
    return 2 * (-(-experts * _INT32 // 128) * 128)


def deepep_buffer_bytes(tokens: int, width: int, experts: int) -> int:
    """Bytes of a rank's DeepEP low-latency buffer for at most `tokens` dispatched tokens a rank."""
    require_positive(tokens=tokens)
    return tokens * deepep_bytes_a_token(width, experts) + deepep_counter_bytes(experts)


def deepep_largest_tokens(width: int, experts: int) -> int:
    """Most tokens a rank whose buffer DeepEP still opens."""
    return (DEEPEP_LARGEST_BUFFER - 1 - deepep_counter_bytes(experts)) // deepep_bytes_a_token(width, experts)


def request_slots(max_running: int, extra: int = 0) -> int:
    """Rows of a request pool of one DP group: running, extra (in transfer), and the padding row 0."""
    require_positive(max_running=max_running)
    require_not_negative(extra=extra)
    return max_running + extra + 1


def default_extra_slots(max_running: int) -> int:
    """Extra slots of a decode server when none are given: twice the requests of a DP group up to 32, none above.

    Source: SGLang 0.5.23, `handle_pd_disaggregation`.
    """
    require_positive(max_running=max_running)
    return 2 * max_running if max_running <= 32 else 0


def request_table_bytes(slots: int, context: int) -> int:
    """Bytes of req_to_token: one int32 KV slot for each position of the longest context in each request slot."""
    require_positive(slots=slots, context=context)
    return slots * context * _INT32


def slot_map_bytes(group_tokens: int) -> int:
    """Bytes of an int64 map over the logical KV slots of a whole group (tokens a rank x DCP)."""
    require_not_negative(group_tokens=group_tokens)
    return group_tokens * _INT64
