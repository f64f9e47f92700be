"""Residual add and RMSNorm, one memory-bound pass over the rows that a rank holds."""

from layouts.expression import ONE, Expr, Number
from layouts.op import Op, elementwise
from layouts.symbols import ATTN_TP

_BF16 = 2
_PASSES = 4  # input and residual read, residual and normed rows written


def norm(name: str, rows: Expr, hidden: int, blocks: Number = 0) -> Op:
    """Residual add fused with RMSNorm: 4 x rows x hidden bf16 values moved.

    Where attention residuals mix the stream with `blocks` earlier states of it (a mean over layers), a fused kernel
    reads each of these once more: (4 + blocks) x rows x hidden; where a layer opens a block, the sum is written as that
    block, and its feed-forward part has no sum to add to: two values fewer, not taken off. The 6 x (blocks + 1) x rows
    x hidden FLOPs, under three a byte, are float32 outside the tensor cores.

    The program adds in one kernel, which also brings the states that are mixed together in one array, and norms in
    another, which reads all of that. Behind a sum over ranks what one of them brings has been a kernel before, as often
    as not.
    """
    value, mixed = rows * (_BF16 * hidden), Expr.of(blocks)
    ours = value * (mixed * 3 + _PASSES + 1)
    return elementwise(name, value * (mixed + _PASSES), program_moved=ours, program_launches=ONE / ATTN_TP * -1 + 3)


def block_bytes(rows: Expr, hidden: int, blocks: Number) -> Expr:
    """bf16 bytes of the blocks of a rank's rows: kept for the length of a step, and handed to the next stage."""
    return rows * (_BF16 * hidden) * blocks
