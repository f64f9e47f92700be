"""Mixture of experts: router, latent projections, dispatch, grouped GEMMs, combine, shared expert."""

from collections.abc import Sequence
from dataclasses import replace

from hw.tables import Kind
from hw.work import CollectiveKind, Family
from layouts.expression import ONE, ZERO, Expr
from layouts.moe.shape import MoE
from layouts.op import Op, Problem, elementwise, exchange, gemm, passes
from layouts.symbols import (
    BY_ALL_TO_ALL,
    BY_MAX_LEN,
    BY_ONE_GROUP,
    BY_SUM_LEN,
    CHOICES,
    EP,
    EXPERT_ROWS,
    EXPERT_TP,
    EXPERTS_BUSIEST,
    EXPERTS_RANK,
    EXPERTS_TOUCHED,
    MOE_ROWS,
    SHARED_ROWS,
    SHARED_TP,
)
from layouts.tensor import Precision, Tensor

_BF16, _INT32, _FLOAT32 = 2, 4, 4
# kernels of the program around the experts
_CHOICE_LAUNCHES, _SUM_LAUNCHES = 3, 2
_LATENT_LAUNCHES, _JOINED_LAUNCHES = 3, 3
_DISPATCH_BYTES = 1  # fp8 payload; its scales, one float32 for 128 values, are added below


def work(moe: MoE, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Ops from the router to the combined output, on the rows that a rank brings."""
    width = moe.width
    sent = MOE_ROWS * moe.topk
    grid = {"rows": MOE_ROWS, "experts": Expr.of(moe.experts)}
    multiplied = [t for t in tensors if t.rows is not None]
    before = [t for t in multiplied if not _routed(t) and not _after(t)]
    # the program's first grouped GEMM ends with it
    activated = elementwise("expert_activation", EXPERT_ROWS * (3 * _BF16 * moe.intermediate) / EXPERT_TP)
    activation = replace(activated, program=False)
    routed = (*(_expert_gemm(t, precision, moe.topk) for t in multiplied if _routed(t)), activation)
    return (
        *(replace(gemm(t, precision), beside=_waits_for_nothing(t)) for t in before),
        *_chosen(moe),
        exchange(
            "dispatch",
            CollectiveKind.DISPATCH,
            sent * (width * _DISPATCH_BYTES + 4 * width // 128),
            EP,
            share=BY_ALL_TO_ALL,
            program_payload=_gathered_rows() * (_BF16 * width),
            shape=grid,
        ),
        # an engine's message carries its expert's number and its weight in a header of its kernel's own
        exchange(
            "dispatch_numbers",
            CollectiveKind.DISPATCH,
            ZERO,
            EP,
            share=BY_ALL_TO_ALL,
            program_payload=_gathered_rows() * (moe.topk * (_INT32 + _FLOAT32)),
        ),
        *(replace(op, problem=_problem(moe, precision)) for op in routed),
        exchange(
            "combine",
            CollectiveKind.COMBINE,
            sent * (_BF16 * width),
            EP,
            share=BY_ALL_TO_ALL,
            program_payload=_gathered_rows() * (_BF16 * width),
            shape=grid,
        ),
        *_joined(moe),
        *_beside(moe),
        *(gemm(t, precision) for t in multiplied if _after(t)),
    )


def _chosen(moe: MoE) -> tuple[Op, ...]:
    """What the program does between router and experts, that engines have in a kernel or two: scores and the best of
    them, their numbers and weights in one message where rows travel, and choices ordered by expert, each expert
    looking through all of them."""
    launches = _CHOICE_LAUNCHES + moe.correction_bias
    numbers = MOE_ROWS * (2 * moe.topk * (_INT32 + _FLOAT32))
    return (
        passes("expert_choice", MOE_ROWS * (launches * 2 * _INT32 * moe.experts), launches),
        passes("expert_message", numbers, 1, BY_ALL_TO_ALL),
        passes("expert_order", _gathered_rows() * (moe.topk * 2 * _INT32), 1),
    )


def _beside(moe: MoE) -> tuple[Op, ...]:
    """The program's kernels of the shared expert and around a latent width: activation, sums of split products, the
    norm, and, where sums are those of several ranks, two messages joined into one and taken apart again."""
    inner = SHARED_ROWS * (3 * _BF16 * moe.shared_intermediate) / SHARED_TP
    launches = _LATENT_LAUNCHES * ONE + _JOINED_LAUNCHES * (BY_MAX_LEN + BY_SUM_LEN + BY_ONE_GROUP)
    return (
        *([passes("shared_activation", inner, 1)] if moe.shared_intermediate else []),
        *([passes("latent_norm", launches * MOE_ROWS * (2 * _BF16 * moe.latent), launches)] if moe.latent else []),
    )


def _joined(moe: MoE) -> tuple[Op, ...]:
    """Behind the experts each row's sum over its choices, found where they were ordered to; of a row that travelled one
    such sum on each rank, which are added where it came from."""
    row = _BF16 * moe.width
    return (
        # those of other ranks' experts read one row, which the cache has
        passes("expert_sum", _gathered_rows() * ((moe.topk * ONE / EP + ONE) * row), _SUM_LAUNCHES),
        passes("expert_ranks_sum", MOE_ROWS * ((EP + ONE) * row), 1, BY_ALL_TO_ALL),
    )


def _problem(moe: MoE, precision: Precision) -> Problem:
    """The routed experts of a rank, as tables state them: by the tokens whose choices, evenly spread over all experts,
    bring the rank its rows."""
    sizes = {
        "tokens": EXPERT_ROWS * EP / moe.topk,
        "width": moe.width * ONE,
        "intermediate": moe.intermediate * ONE,
        "topk": moe.topk * ONE,
        "experts": moe.experts * ONE,
        "tp": EXPERT_TP,
        "ep": EP,
        "uneven": ZERO,
        "travelled": BY_ALL_TO_ALL,
        "touched": EXPERTS_TOUCHED / EXPERTS_RANK,
    }
    return Problem(Kind.GROUPED, precision["experts"].name, sizes)


def _expert_gemm(tensor: Tensor, precision: Precision, topk: int) -> Op:
    """Only the experts that a token chose are read; each row is multiplied with the one expert that it was sent to."""
    stored = tensor.format(precision)
    read = EXPERTS_TOUCHED * ((stored.payload + stored.scale) * tensor.parameters) / tensor.cut
    packed = stored.payload < 1 and stored.rate != "fp4"
    family = Family.GROUPED_GEMM_PACKED if packed else Family.GROUPED_GEMM
    shape = {
        "rows": EXPERT_ROWS,
        "groups": EXPERTS_TOUCHED,
        # the engine plans for all rows that enter the kernel, wherever their experts are
        "planned": MOE_ROWS * topk / EXPERTS_RANK,
        "columns": tensor.out * ONE / (ONE if tensor.cut_input else tensor.cut),
        # rows that did not travel to their experts are gathered for them, and summed after
        "copied": MOE_ROWS * (_topk_width(tensor, topk)) * (ONE + BY_ALL_TO_ALL * -1),
    }
    product = gemm(tensor, precision, family, read, _room_to_compute(), shape)
    return replace(
        product,
        # all wait for the rank that reads most
        program_bytes=product.bytes.substitute({"experts_touched": EXPERTS_BUSIEST}),
        program_shape={"groups": EXPERTS_BUSIEST, "copied": ZERO},  # copies are ops of their own: `_chosen`, `_joined`
    )


def _topk_width(tensor: Tensor, topk: int) -> int:
    """Values of a row's copies on the side of the hidden width."""
    return topk * (tensor.out if tensor.cut_input else tensor.inp)


def _gathered_rows() -> Expr:
    """Rows whose choices a rank looks through: all that share its experts. Those that travel come to every rank, as
    shapes are fixed; on an engine's wire there are `moe_rows` x top-k."""
    return MOE_ROWS * (EP * BY_ALL_TO_ALL + BY_MAX_LEN + BY_SUM_LEN + BY_ONE_GROUP)


def _room_to_compute() -> Expr:
    """Rows of the program's grouped GEMMs, against `expert_rows`: what may arrive, or be local of the gathered rows."""
    return _gathered_rows() * CHOICES


def _routed(tensor: Tensor) -> bool:
    return tensor.copies != ONE


def _waits_for_nothing(tensor: Tensor) -> CollectiveKind | None:
    """The shared expert may run while routed rows are on their way back (article 000: in the combine's hook)."""
    return CollectiveKind.COMBINE if tensor.component == "shared" else None


def _after(tensor: Tensor) -> bool:
    """The projection back from the latent width runs on combined rows."""
    return tensor.name == "latent_up_proj"
