"""Gated delta rules: a recurrent state a head instead of a KV cache."""

from collections.abc import Sequence
from fractions import Fraction

from hw.tables import Kind
from hw.work import Family
from layouts.expression import ONE, ZERO, Expr
from layouts.kda.shape import KDA
from layouts.op import Op, Problem, elementwise, gemms, passes
from layouts.symbols import ATTN_TP, BATCH, INVERSE_LEVELS, REQUESTS, ROWS, VERIFY
from layouts.tensor import Precision, Tensor

_BF16, _FP32 = 2, 4
_PREPARED = 8  # kernels
# bf16 values a row, head and channel that the kernels of the chunked form move together: the count at which one
# bandwidth fits short and long prompts of the public tables
_CHUNK_VALUES = 20
_CHUNK = 64  # rows of a chunk: chunks of a prompt follow each other
_PROMPT_WINDOW = 16  # rows that a CTA of the convolution walks over in a prompt
_FLOPS = 7  # a state element and row: decay, both products and the outer update; the curves count the same


def decode(kda: KDA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a decode or verify step: projections, short convolutions, one pass over the state, gated norm."""
    asked = _problem(Kind.CONVOLUTION, kda, precision, VERIFY)
    around = _around(kda, Family.CONVOLUTION, None, asked)
    return (*gemms(tensors, precision), *around, *_prepared(kda), _recurrence(kda, precision))


def prefill(kda: KDA, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops of a prefill chunk. The chunked matrix form does more arithmetic than the recurrence that it stands for; its
    curve is fitted to the FLOPs of the recurrence."""
    core = Op(
        _name(kda, "chunk"),
        family=Family.STATE_CHUNK,
        flops=ROWS * (_FLOPS * kda.state_values) / ATTN_TP,
        bytes=ROWS * (_CHUNK_VALUES * _BF16 * kda.width) / ATTN_TP + _state_traffic(kda, precision),
        shape={"ctas": REQUESTS * kda.heads / ATTN_TP, "steps": ROWS / REQUESTS * Fraction(1, _CHUNK)},
        problem=_problem(Kind.STATE_CHUNK, kda, precision, ROWS / REQUESTS),
    )
    asked = _problem(Kind.CONVOLUTION_PREFILL, kda, precision, ROWS / REQUESTS)
    return (*gemms(tensors, precision), *_around(kda, Family.CONVOLUTION_PREFILL, _PROMPT_WINDOW, asked), core)


def commit(kda: KDA, precision: Precision) -> Op:
    """ReplaySSM after verification: accepted tokens are replayed from the ring into the state."""
    return Op(_name(kda, "commit"), family=Family.ELEMENTWISE, bytes=_state_traffic(kda, precision), program=False)


def _recurrence(kda: KDA, precision: Precision) -> Op:
    """S <- decay S + beta k (v - k S), o = q S for each row."""
    decay = 0 if kda.head_gate else kda.width  # one a channel is read like a vector
    return Op(
        _name(kda, "state"),
        family=Family.STATE,
        flops=ROWS * (_FLOPS * kda.state_values) / ATTN_TP,
        bytes=_state_traffic(kda, precision) + ROWS * (_BF16 * (kda.conv_width + kda.width + decay)) / ATTN_TP,
        # a verification leaves the state after each token behind, from which a rejected draft is undone
        shape={"steps": VERIFY, "copied": REQUESTS * (VERIFY + Expr.of(-1)) * kda.state_values / ATTN_TP},
        problem=_problem(Kind.STATE, kda, precision, VERIFY),
        program_flops=_solved(kda),
        # one pass leaves writes and no states: a rejected draft is never in one
        program_shape={"copied": ZERO},
    )


def _prepared(kda: KDA) -> tuple[Op, ...]:
    """The program's kernels before the recurrence: the convolution with its window, queries and keys of length one,
    decays, write strengths, inputs kept for the next step, and what XLA has between them in float32."""
    kept = REQUESTS * (VERIFY + (kda.conv_kernel - 1)) * (_BF16 * kda.conv_width) / ATTN_TP
    # windows are gathered and joined with what is new, read by the convolution, and written to their slots
    moved = kept * 3 + ROWS * (12 * _FP32 * kda.width) / ATTN_TP
    return passes(_name(kda, "prepare"), moved, _PREPARED), passes(_name(kda, "window"), kept * 2, 1)


def _solved(kda: KDA) -> Expr:
    """Dots of `chunked`, which stands in for the recurrence: the accepted rows brought into the state; for the new rows
    of a request both products with it; decayed products of each pair of rows (the decays as dots of their own) and two
    products with them; and the inverse of their triangle."""
    width, pairs = kda.head_dim, VERIFY * VERIFY
    a_head = VERIFY * (6 * width * width) + pairs * (10 * width) + pairs * VERIFY * INVERSE_LEVELS * 4
    return BATCH * kda.heads * a_head / ATTN_TP


def _state_traffic(kda: KDA, precision: Precision) -> Expr:
    """The state of every running request, read once and written once."""
    return REQUESTS * (2 * kda.state_values * precision["state"].payload) / ATTN_TP


def _name(kda: KDA, op: str) -> str:
    return f"{kda.label.lower()}_{op}"


def _problem(kind: Kind, kda: KDA, precision: Precision, tokens: Expr) -> Problem | None:
    """A kernel over `tokens` rows of each request, as tables state it; they have none with fewer key heads."""
    if kda.head_gate:
        return None
    sizes = {"heads": kda.heads / ATTN_TP, "requests": REQUESTS, "tokens": tokens}
    widths = {"width": kda.head_dim * ONE, "taps": kda.conv_kernel * ONE}
    return Problem(kind, precision["state"].name, {**sizes, **widths})


def _around(kda: KDA, family: Family, steps: int | None, problem: Problem | None) -> tuple[Op, ...]:
    """Short convolutions of q, k and v, and the gated norm. A decoded row reads and writes the window before it too."""
    window = 0 if steps is not None else kda.conv_kernel - 1
    moved = ROWS * (2 * _BF16 * (1 + window) * kda.conv_width) / ATTN_TP
    shape = {} if steps is None else {"steps": Expr.of(steps)}
    return (
        # in the program it is a part of `_prepared`
        Op(_name(kda, "conv"), family=family, bytes=moved, shape=shape, problem=problem, program=False),
        elementwise(_name(kda, "gated_norm"), ROWS * (3 * _BF16 * kda.width) / ATTN_TP),
    )
