"""The exchanges of decode context parallelism: partial attention outputs of a DCP group become one (rules: DCP)."""

from hw.work import CollectiveKind
from layouts.expression import ONE
from layouts.op import Op, elementwise, exchange, passes
from layouts.symbols import ATTENTION_PARTS, ATTN_TP, BY_A2A, BY_AG_RS, BY_FI_A2A, DCP, HAS_DCP, ROWS

_BF16, _FP32 = 2, 4
_LSE_COLUMNS = 2  # a float32 LSE travels as two bf16 columns of the packed row


def merge(heads: int, width: int) -> Op:
    """The program's merge of the parts of a split KV, float32, of `heads` heads whose output has `width` values: one
    kernel, none of a single part. An engine's time of attention includes it."""
    outputs = ROWS * heads * DCP / ATTN_TP
    parts = ATTENTION_PARTS * outputs * (2 * _FP32 * width)  # written by the attention, and read
    return passes("attention_merge", parts + outputs * (_BF16 * width), ONE / ATTENTION_PARTS * -1 + 1)


def combine(heads: int, query_width: int, output_width: int, copied_query: bool) -> tuple[Op, ...]:
    """Exchange and merge for `heads` heads whose query has `query_width` and whose output `output_width` values.

    ag_rs: Q all-gather, float32 LSE all-gather, float32 output reduce-scatter. a2a: one packed all-to-all of bf16
    output and LSE. fi_a2a: the same bytes in one fused exchange. These two need no Q all-gather where each rank keeps
    a copy of the Q projections of all heads (`copied_query`).
    """
    outputs = ROWS * heads * DCP / ATTN_TP  # (row, head) pairs a rank holds partial results of
    packed = outputs * (_BF16 * (output_width + _LSE_COLUMNS))
    # pack reads and writes the packed rows; the merge reads them and writes 1/dcp of the heads
    repacked = packed * 3 + outputs * (_BF16 * output_width) / DCP
    gathers_query = BY_AG_RS * HAS_DCP if copied_query else HAS_DCP
    return (
        exchange("q_all_gather", CollectiveKind.ALL_GATHER, outputs * (_BF16 * query_width), DCP, share=gathers_query),
        exchange("lse_all_gather", CollectiveKind.ALL_GATHER, outputs * _FP32 * DCP, DCP, share=BY_AG_RS * HAS_DCP),
        exchange(
            "output_reduce_scatter",
            CollectiveKind.REDUCE_SCATTER,
            outputs * (_FP32 * output_width),
            DCP,
            share=BY_AG_RS * HAS_DCP,
        ),
        exchange("dcp_exchange", CollectiveKind.ALL_TO_ALL, packed, DCP, share=(BY_A2A + BY_FI_A2A) * HAS_DCP),
        # a2a and fi_a2a are one program: it packs in one kernel, and merges in three
        elementwise("dcp_pack_merge", repacked, share=BY_A2A * HAS_DCP, program_launches=4),
        elementwise("dcp_scale", outputs * (2 * _FP32 * output_width), share=BY_AG_RS * HAS_DCP, program_launches=3),
    )
