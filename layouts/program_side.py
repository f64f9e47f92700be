"""A step as the JAX program takes it: the program's side of every op, in the fields that the time model prices.

What an engine does stands in `flops`, `bytes`, `payload` and `shape` of an op. Our program has other kernels around the
large ones, which XLA makes, sends messages with room for the most rows that may come, and lacks some ops. Its large
kernels (attention, states, grouped GEMMs) read and compute what there is, as an engine's do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import jax.numpy as jnp
from jaxtyping import ArrayLike

from hw.arithmetic import Arithmetic
from hw.work import CollectiveKind
from layouts.cut import Scalar
from layouts.expression import ZERO
from layouts.op import Op
from layouts.quantities import Traits

_BLOCK_ROWS: Final = 64
_SMALL_BLOCKS: Final = 3.0  # that run on a multiprocessor at a time
_MOST_PARTS: Final = 64
# The program's exchange in place of those that engines make with kernels of their own.
AS_PROGRAM: Final[Mapping[CollectiveKind, CollectiveKind]] = {
    CollectiveKind.DISPATCH: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.COMBINE: CollectiveKind.ALL_TO_ALL,
}


def as_program(op: Op) -> Op | None:
    """The op as the program runs it; None where it does not."""
    if not op.program:
        return None
    if op.collective is not None:
        kind = AS_PROGRAM.get(op.collective, op.collective)
        return replace(op, collective=kind, payload=op.audited_payload, shape=op.program_shape)
    moved = op.bytes if op.program_bytes is None else op.program_bytes
    beside = None if op.beside is None else AS_PROGRAM.get(op.beside, op.beside)
    return replace(op, bytes=moved, shape={**op.shape, **op.program_shape}, beside=beside, problem=None)


def program_ops(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The program's ops among some of a step, in their order."""
    ours = (as_program(op) for op in ops)
    return tuple(op for op in ours if op is not None and (op.collective is None or op.payload != ZERO))


def program_quantities(
    ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: ArrayLike
) -> dict[str, Scalar]:
    """The quantities of `symbols.PROGRAM_MEANING` that bytes and payloads of a program on one stage name."""
    kept = float(traits.index_topk) if traits.index_topk else values["context"]
    return {
        "choices": ar.minimum(float(traits.topk), values["experts_rank"]),
        "chosen_tokens": ar.minimum(kept, values["context"]),
        "handed_blocks": jnp.zeros(()),
        "attention_parts": _parts(ar, values, traits, sms),
    }


def _parts(ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: ArrayLike) -> Scalar:
    """As many as let the kernel's blocks fill the multiprocessors once, or a few times where they are small: over
    latents a block has 64 query rows, over pairs of heads those of a KV head (`layouts.mla.hopper.splits`,
    `layouts.paged.tiling`)."""
    if traits.heads > 1:
        rows = values["verify"] * traits.heads * values["dcp"] / values["attn_tp"]
        blocks, at_once = ar.ceil(rows / _BLOCK_ROWS), 1.0
    else:
        blocks, at_once = traits.kv_heads / values["kv_head_ranks"], _SMALL_BLOCKS
    fill = ar.floor(jnp.asarray(sms, dtype=float) * at_once / (values["batch"] * blocks))
    return ar.minimum(ar.maximum(fill, 1.0), float(_MOST_PARTS))
