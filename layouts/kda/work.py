"""Kimi Delta Attention: a recurrent state a head instead of a KV cache."""

from collections.abc import Sequence

from hw.work import Family
from layouts.expression import Expr
from layouts.kda.shape import KDA
from layouts.op import Op, elementwise, gemms
from layouts.symbols import ATTN_TP, BATCH, INVERSE_LEVELS, REQUESTS, ROWS, VERIFY
from layouts.tensor import Precision, Tensor

_BF16 = 2
_FLOPS = 7  # a state element and row: decay, both products and the outer update; the curves count the same


def decode(kda: KDA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step: projections, short convolutions, one pass over the state, gated norm."""
    return (*gemms(tensors, precision), *_around(kda), _recurrence(kda, precision))


def prefill(kda: KDA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk. The chunked matrix form does more arithmetic than the recurrence that it stands for; its
    curve is fitted to the FLOPs of the recurrence."""
    width = kda.head_dim
    core = Op(
        "kda_chunk",
        family=Family.STATE,
        flops=ROWS * (_FLOPS * kda.heads * width * width) / ATTN_TP,
        bytes=ROWS * (8 * _BF16 * kda.heads * width) / ATTN_TP,
    )
    return (*gemms(tensors, precision), *_around(kda), core)


def commit(kda: KDA, precision: Precision) -> Op:
    """ReplaySSM after verification: accepted tokens are replayed from the ring into the state."""
    return Op("kda_commit", family=Family.ELEMENTWISE, bytes=_state_traffic(kda, precision), program=False)


def _recurrence(kda: KDA, precision: Precision) -> Op:
    """S <- decay S + beta k (v - k S), o = q S for each row."""
    width = kda.head_dim
    return Op(
        "kda_state",
        family=Family.STATE,
        flops=ROWS * (_FLOPS * kda.heads * width * width) / ATTN_TP,
        bytes=_state_traffic(kda, precision) + ROWS * (5 * _BF16 * kda.heads * width) / ATTN_TP,
        program_flops=_solved(kda),
    )


def _solved(kda: KDA) -> Expr:
    """Dots of `chunked.solve`, which stands in for the recurrence: for the rows of a request both products with the
    state; decayed products of each pair of rows (the decays as dots of their own) and two products with them; and the
    inverse of their triangle."""
    width, pairs = kda.head_dim, VERIFY * VERIFY
    a_head = VERIFY * (4 * width * width) + pairs * (10 * width) + pairs * VERIFY * INVERSE_LEVELS * 4
    return BATCH * kda.heads * a_head / ATTN_TP


def _state_traffic(kda: KDA, precision: Precision) -> Expr:
    """The state of every running request, read once and written once."""
    values = kda.heads * kda.head_dim * kda.head_dim
    return REQUESTS * (2 * values * precision["state"].payload) / ATTN_TP


def _around(kda: KDA) -> tuple[Op, ...]:
    width = kda.heads * kda.head_dim
    return (
        elementwise("kda_conv", ROWS * (2 * 3 * _BF16 * width) / ATTN_TP),
        elementwise("kda_gated_norm", ROWS * (3 * _BF16 * width) / ATTN_TP),
    )
