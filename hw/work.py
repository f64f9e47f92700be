"""The vocabulary in which an op states its needs: arithmetic and memory traffic, or bytes between ranks.

An op is a family and a few numbers. No op is known here by name; a model is rows of these arrays, and the time model
is called once on all of them.
"""

from enum import StrEnum
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float


class Family(StrEnum):
    """Kernels that share one efficiency curve."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"  # one GEMM for each expert, launched together
    ATTENTION = "attention"  # split-KV attention, quantised by waves of CTAs
    STATE = "state"  # recurrence of linear attention: its state is read and written
    ELEMENTWISE = "elementwise"
    COPY = "copy"  # inside one GPU's memory


class Rate(StrEnum):
    """Tensor-core rates, by the wider operand."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class CollectiveKind(StrEnum):
    """Exchanges between ranks that share one latency and one efficiency."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    DISPATCH = "dispatch"  # token rows to the ranks of their experts
    COMBINE = "combine"  # and back
    SEND = "send"  # point to point, between pipeline stages
    COPY_GATHER = "copy_gather"  # all-gather by copy engines, one peer after the other


FAMILIES: Final = tuple(Family)
RATES: Final = tuple(Rate)
COLLECTIVES: Final = tuple(CollectiveKind)

# Bytes that a rank sends, as a multiple of (n - 1) / n x payload: a ring all-reduce is reduce-scatter + all-gather.
_ROUNDS: Final = {kind: 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0 for kind in CollectiveKind}


class Work(eqx.Module):
    """What one rank computes, op by op.

    `flops` counts multiply and add as two. `bytes` are read from plus written to HBM. `ctas` is the number of thread
    blocks of a wave-quantised kernel, 0 where waves do not matter.
    """

    family: tuple[Family, ...] = eqx.field(static=True)
    rate: tuple[Rate, ...] = eqx.field(static=True)
    flops: Float[Array, "ops"]
    bytes: Float[Array, "ops"]
    ctas: Float[Array, "ops"]

    def __check_init__(self) -> None:
        _check_lengths("Work", len(self.family), rate=self.rate, flops=self.flops, bytes=self.bytes, ctas=self.ctas)


class Collective(eqx.Module):
    """What one rank exchanges, collective by collective.

    `size` ranks take part, `stride` apart in rank order. `payload` in bytes means, by kind:

    - all_gather, copy_gather: the gathered result on a rank;
    - reduce_scatter: the input on a rank;
    - all_reduce: the buffer;
    - all_to_all: what a rank holds before the exchange (1 / size of it stays);
    - dispatch, combine: what a rank sends (receives) if no row stayed at home: rows x top-k x bytes of a row;
    - send: the message.
    """

    kind: tuple[CollectiveKind, ...] = eqx.field(static=True)
    payload: Float[Array, "collectives"]
    size: Float[Array, "collectives"]
    stride: Float[Array, "collectives"]

    def __check_init__(self) -> None:
        _check_lengths("Collective", len(self.kind), payload=self.payload, size=self.size, stride=self.stride)


def sent_bytes(kind: CollectiveKind | tuple[CollectiveKind, ...], payload: ArrayLike, size: ArrayLike) -> Array:
    """Bytes that one rank sends: (n - 1) / n of the payload, twice that for an all-reduce; a send is the whole of it.

    Bandwidth-optimal algorithms (ring, pairwise); a group of one sends nothing. Rows of dispatch and combine are taken
    to be spread evenly over the ranks. `kind` is one kind or a tuple of them, one an entry of the arrays.
    """
    payload, size = jnp.asarray(payload), jnp.maximum(jnp.asarray(size), 1.0)
    kinds = (kind,) if isinstance(kind, CollectiveKind) else kind
    rounds = jnp.asarray([_ROUNDS[k] for k in kinds], dtype=payload.dtype)
    whole = np.array([k is CollectiveKind.SEND for k in kinds])
    if isinstance(kind, CollectiveKind):
        rounds, whole = rounds[0], whole[0]
    leaves = jnp.where(whole, jnp.minimum(size - 1.0, 1.0), (size - 1.0) / size)
    return rounds * payload * leaves


def _check_lengths(what: str, ops: int, **columns: Array | tuple[Rate, ...]) -> None:
    for name, column in columns.items():
        length = len(column) if isinstance(column, tuple) else column.shape[-1]
        if length != ops:
            raise ValueError(f"{what}: {name} has {length} entries for {ops} ops")
