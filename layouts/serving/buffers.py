"""Buffers and tables whose bytes follow from a closed form, of a count or of an expression for it."""

from typing import Final, TypeVar

from layouts.expression import Expr
from layouts.serving.errors import EngineRuleError, require_positive

Count = TypeVar("Count", int, Expr)

# One fp32 scale for each 128 values of a dispatched row; one 16-byte header a message. DeepEP, low-latency layout.
_SCALE_GROUP: Final = 128
_HEADER: Final = 16
_INT32: Final = 4
_INT64: Final = 8
_WORD: Final = 16


def sent_width(width: int) -> int:
    """Values of a row as it is sent: in whole groups of one scale."""
    return -(-width // _SCALE_GROUP) * _SCALE_GROUP


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


def deepep_buffer_bytes(tokens: Count, width: int, experts: int) -> Count:
    """Bytes of a rank's DeepEP low-latency buffer for at most `tokens` dispatched tokens a rank."""
    return tokens * deepep_bytes_a_token(width, experts) + deepep_counter_bytes(experts)


def most_dispatch_tokens(width: int, experts: int) -> int:
    """Most tokens a rank may dispatch before DeepEP refuses the buffer: 16-byte words are counted in 31 bits.

    The buffer must stay below 32 GiB less a word. The engine that asks for it may set a lower cap.
    Source: DeepEP `Buffer` (num_rdma_bytes / 16 < 2^31 - 1); vLLM issue 57894 met it at 1,856 tokens.
    """
    room = _WORD * (2**31 - 1) - 1 - deepep_counter_bytes(experts)
    return room // deepep_bytes_a_token(width, experts)


def request_table_bytes(slots: Count, context: int) -> Count:
    """Bytes of req_to_token: one int32 KV slot for each position of the longest context in each request slot."""
    return slots * (_INT32 * context)


def slot_map_bytes(group_tokens: Count) -> Count:
    """Bytes of an int64 map over the logical KV slots of a whole group (tokens a rank x DCP)."""
    return group_tokens * _INT64
