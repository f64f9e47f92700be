"""The vocabulary in which an op states its needs: arithmetic and memory traffic, or bytes between ranks.

An op is a family and a few numbers. No op is known here by name; a model is rows of these arrays, and the time model
is called once on all of them.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float


class Family(StrEnum):
    """Kernels that share one curve."""

    GEMM = "gemm"
    GEMM_HEADS = "gemm_heads"  # one small product a head, in one launch
    GROUPED_GEMM = "grouped_gemm"  # one GEMM for each expert, launched together
    GROUPED_GEMM_PACKED = "grouped_gemm_packed"  # the same over four-bit weights that the kernel unpacks
    ATTENTION = "attention"  # split-KV decode over latents
    ATTENTION_HEADS = "attention_heads"  # decode over keys and values of their own a head
    ATTENTION_SPARSE = "attention_sparse"  # decode over the tokens that an index chose
    ATTENTION_PREFILL = "attention_prefill"
    INDEX = "index"  # scores of an index: dot products without a softmax
    INDEX_PREFILL = "index_prefill"
    STATE = "state"  # recurrence of linear attention: its state is read and written
    STATE_CHUNK = "state_chunk"  # the same over a prompt, chunk by chunk
    CONVOLUTION = "convolution"  # short, causal, over a window of inputs that each request keeps
    CONVOLUTION_PREFILL = "convolution_prefill"
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


# What an op may state beside its FLOPs and bytes; each is 0 where it does not matter.
LAUNCHES: Final = "launches"  # the one shape that is 1 where nothing is said of it
EXCHANGE_SHAPES: Final = ("rows", "experts", LAUNCHES)
SHAPES: Final = ("ctas", "splits", "steps", "copied", "rows", "groups", "planned", "columns", LAUNCHES)


class Work(eqx.Module):
    """What one rank computes, op by op.

    `flops` counts multiply and add as two. `bytes` are read from plus written to HBM. `ctas`: thread blocks of a kernel
    whose grid is known; `splits`: parts of the KV that are merged afterwards; `steps`: products or updates that wait
    for one another. Of a grouped GEMM `rows` in `groups` meet weights of `columns`, with `planned` rows a group that
    the engine chooses its tile for, and `copied` values are gathered before and summed after. `launches`: kernels that
    an op starts one after the other, 1 where nothing is said.
    """

    family: tuple[Family, ...] = eqx.field(static=True)
    rate: tuple[Rate, ...] = eqx.field(static=True)
    flops: Float[Array, "ops"]
    bytes: Float[Array, "ops"]
    ctas: Float[Array, "ops"]
    splits: Float[Array, "ops"]
    steps: Float[Array, "ops"]
    copied: Float[Array, "ops"]
    rows: Float[Array, "ops"]
    groups: Float[Array, "ops"]
    planned: Float[Array, "ops"]
    columns: Float[Array, "ops"]
    launches: Float[Array, "ops"]

    @classmethod
    def of(
        cls, family: Sequence[Family], rate: Sequence[Rate], flops: ArrayLike, bytes: ArrayLike, **shapes: ArrayLike
    ) -> "Work":
        """Work of some ops; a shape that is left out is 0, `launches` 1."""
        columns = {name: jnp.asarray(value, dtype=float) for name, value in {"bytes": bytes, **shapes}.items()}
        none = jnp.zeros(len(family))
        columns.setdefault(LAUNCHES, jnp.ones(len(family)))
        return cls(
            tuple(family), tuple(rate), jnp.asarray(flops, dtype=float), columns.pop("bytes"),
            **{name: columns.pop(name, none) for name in SHAPES}, **columns,
        )  # fmt: skip

    def __check_init__(self) -> None:
        shapes = {name: getattr(self, name) for name in SHAPES}
        _check_lengths("Work", len(self.family), rate=self.rate, flops=self.flops, bytes=self.bytes, **shapes)


class Collective(eqx.Module):
    """What one rank exchanges, collective by collective.

    `size` ranks take part, `stride` apart in rank order. `payload` in bytes means, by kind:

    - all_gather, copy_gather: the gathered result on a rank;
    - reduce_scatter: the input on a rank;
    - all_reduce: the buffer;
    - all_to_all: what a rank holds before the exchange (1 / size of it stays);
    - dispatch, combine: what a rank sends (receives) if no row stayed at home: rows x top-k x bytes of a row;
    - send: the message.

    Of dispatch and combine: `rows` that a rank sends (each several times), and the `experts` of all ranks, for each of
    which the kernel keeps a group of warps; 0 where nothing is said. `launches`: messages that the payload travels in,
    one after the other.
    """

    kind: tuple[CollectiveKind, ...] = eqx.field(static=True)
    payload: Float[Array, "collectives"]
    size: Float[Array, "collectives"]
    stride: Float[Array, "collectives"]
    rows: Float[Array, "collectives"]
    experts: Float[Array, "collectives"]
    launches: Float[Array, "collectives"]

    @classmethod
    def of(
        cls, kind: Sequence[CollectiveKind], payload: ArrayLike, size: ArrayLike, stride: ArrayLike | None = None,
        rows: ArrayLike | None = None, experts: ArrayLike | None = None, launches: ArrayLike | None = None,
    ) -> "Collective":  # fmt: skip
        """Collectives of neighbouring ranks, one message each, of which no rows or experts are known, unless given."""
        payload = jnp.asarray(payload, dtype=float)
        none, one = jnp.zeros_like(payload), jnp.ones_like(payload)
        given = ((stride, one), (rows, none), (experts, none), (launches, one))
        rest = [otherwise if c is None else jnp.asarray(c, dtype=float) for c, otherwise in given]
        return cls(tuple(kind), payload, jnp.asarray(size, dtype=float), *rest)

    def __check_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("payload", "size", "stride", *EXCHANGE_SHAPES)}
        _check_lengths("Collective", len(self.kind), **columns)


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
