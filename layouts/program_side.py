"""A step as the JAX program takes it: the program's side of every op, in the fields that the time model prices.

What an engine does stands in `flops`, `bytes`, `payload` and `shape` of an op. Our program has other kernels around the
large ones, which XLA makes, sends every row to every rank of the experts, and lacks some ops. Its large kernels
(attention, states, grouped GEMMs) read and compute what there is, as an engine's do, attention in whole blocks of rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import ArrayLike

from hw.arithmetic import Arithmetic
from hw.work import CollectiveKind
from layouts.cut import Scalar
from layouts.expression import ZERO
from layouts.mla.shares import ROWS, shares_of
from layouts.op import Op
from layouts.paged.splits import MOST_SPLITS, START_TILES
from layouts.paged.steps import steps_of
from layouts.quantities import Traits

_BF16: Final = 2  # bytes of a value of the program's pool
_TINY: Final = 1e-12  # a root has no slope at zero
# The program's exchange in place of those that engines make with kernels of their own.
AS_PROGRAM: Final[Mapping[CollectiveKind, CollectiveKind]] = {
    CollectiveKind.DISPATCH: CollectiveKind.ALL_GATHER,
    CollectiveKind.COMBINE: CollectiveKind.ALL_TO_ALL,
}


class _Attention(NamedTuple):
    """Values of the quantities of these names."""

    attention_blocks: Scalar
    attention_padding: Scalar
    attention_parts: Scalar
    attention_cut: Scalar


def as_program(op: Op) -> Op | None:
    """The op as the program runs it; None where it does not."""
    if not op.program:
        return None
    if op.collective is not None:
        kind = AS_PROGRAM.get(op.collective, op.collective)
        return replace(op, collective=kind, payload=op.audited_payload, shape=op.program_shape)
    moved = op.bytes if op.program_bytes is None else op.program_bytes
    beside = None if op.beside is None else AS_PROGRAM.get(op.beside, op.beside)
    flops = op.flops * op.program_padding
    return replace(op, flops=flops, bytes=moved, shape={**op.shape, **op.program_shape}, beside=beside, problem=None)


def program_ops(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The program's ops among some of a step, in their order."""
    ours = (as_program(op) for op in ops)
    return tuple(op for op in ours if op is not None and (op.collective is None or op.payload != ZERO))


def program_quantities(
    ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: ArrayLike, room: ArrayLike = 0.0
) -> dict[str, Scalar]:
    """The quantities of `symbols.PROGRAM_MEANING` that bytes, payloads and shapes of a program on one stage name.

    `room`: tokens a request that tables have room for, where those are more than its context."""
    kept = float(traits.index_topk) if traits.index_topk else values["context"]
    latents = traits.heads > 1
    attention = _latents(ar, values, traits, sms) if latents else _pairs(ar, values, traits, sms, room)
    return {
        "choices": ar.minimum(float(traits.topk), values["experts_rank"]),
        "experts_busiest": _busiest(ar, values["experts_touched"], values["experts_rank"], values["ep"]),
        "chosen_tokens": ar.minimum(kept, values["context"]),
        "handed_blocks": jnp.zeros(()),
        **attention._asdict(),
    }


def _busiest(ar: Arithmetic, touched: Scalar, held: Scalar, ranks: Scalar) -> Scalar:
    """Experts touched on that one of the ranks of a copy which has most of them, in the mean: each expert is touched or
    not by itself, so a rank's number is about normal, and of n such numbers the largest is expected at the quantile
    (n - 3/8) / (n + 1/4) (G. Blom, Statistical Estimates and Transformed Beta-Variables, 1958). Of one rank its own; no
    more than are held."""
    spread = jnp.sqrt(ar.maximum(touched * (1.0 - touched / held), _TINY))
    return ar.minimum(touched + ndtri((ranks - 0.375) / (ranks + 0.25)) * spread, held)


def _latents(ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: ArrayLike) -> _Attention:
    """Over latents blocks take equal shares of all tiles that there are, whatever tables have room for; padding is of
    rows, and of what pieces cost besides their tiles (`layouts.mla.shares`)."""
    rows = values["verify"] * traits.heads * values["dcp"] / values["attn_tp"]
    shares = shares_of(ar, values["batch"], rows, values["context"] / values["dcp"], sms)
    padding = ar.ceil(rows / ROWS) * ROWS / rows * shares.passed
    return _Attention(shares.blocks, padding, shares.pieces, shares.cut)


def _pairs(ar: Arithmetic, values: Mapping[str, Scalar], traits: Traits, sms: ArrayLike, room: ArrayLike) -> _Attention:
    """Over pairs a block has the query rows of a KV head, a power of two of those that there are steps for, and every
    request is cut in as many parts, by the tokens that tables have room for (`layouts.paged.tiling`)."""
    steps = steps_of(traits.key, 2 * traits.key, _BF16)
    tokens = ar.maximum(values["context"], room) / values["dcp"]
    rows = values["verify"] * float(traits.group) * values["kv_head_ranks"] * values["dcp"] / values["attn_tp"]
    most = jnp.clip(2.0 ** ar.ceil(jnp.log2(rows)), float(min(steps)), float(max(steps)))
    taken = jnp.searchsorted(jnp.array([float(each) for each in steps]), most)
    tile, at_once = (jnp.array([float(getattr(s, of)) for s in steps.values()])[taken] for of in ("tokens", "at_once"))
    held = traits.kv_heads / values["kv_head_ranks"]
    blocks = values["batch"] * held * ar.ceil(rows / most)
    parts = _parts(ar, blocks, ar.ceil(tokens / tile), jnp.asarray(sms, dtype=float) * at_once)
    padding = ar.ceil(rows / most) * most / rows
    return _Attention(blocks * parts, padding, parts, jnp.where(parts > 1, 1.0, 0.0))


def _parts(ar: Arithmetic, blocks: Scalar, tiles: Scalar, at_once: Scalar) -> Scalar:
    """Parts of a request's tokens: the fewest of those that end soonest, where so many blocks, each of which would pass
    so many tiles, run one wave of `at_once` after the other (`layouts.paged.splits`)."""
    counts = jnp.arange(1.0, MOST_SPLITS + 1.0)
    waves = ar.ceil(blocks * counts / at_once)
    ends = waves * (ar.ceil(tiles / counts) + START_TILES)
    return counts[jnp.argmin(jnp.where(counts <= ar.maximum(tiles, 1.0), ends, jnp.inf))]
