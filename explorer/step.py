"""The time of one step of any layout: ops lowered to arrays, priced by the machine, laid out on streams."""

from collections.abc import Sequence
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from explorer.schedule import Schedule, schedule
from hw.arithmetic import Arithmetic
from hw.machine import Machine
from hw.time import collective_seconds, compute_seconds
from hw.work import EXCHANGE_SHAPES, SHAPES, Collective, CollectiveKind, Family, Rate, Work
from layouts.blocks import StepBlocks
from layouts.cut import Cut, window
from layouts.expression import ZERO, Expr
from layouts.lowering import Lowered, Values, Vector
from layouts.op import Op, Stream

_KERNEL_COLUMNS: Final = ("flops", "bytes", "share", *SHAPES)
_SHAPES: Final = frozenset({*SHAPES, *EXCHANGE_SHAPES})
_EXCHANGE_COLUMNS: Final = ("payload", "size", "stride", "share", *EXCHANGE_SHAPES)


class StepTable(eqx.Module):
    """The ops of a model's step as arrays: kernels first, then exchanges, each with the block that it belongs to."""

    names: tuple[str, ...] = eqx.field(static=True)
    families: tuple[Family, ...] = eqx.field(static=True)
    rates: tuple[Rate, ...] = eqx.field(static=True)
    kinds: tuple[CollectiveKind, ...] = eqx.field(static=True)
    block_names: tuple[str, ...] = eqx.field(static=True)
    target: range = eqx.field(static=True)
    draft: range = eqx.field(static=True)
    kernels: Lowered
    exchanges: Lowered
    block: Int[np.ndarray, " ops"]
    gathers: Float[np.ndarray, " ops"]
    sequence: Int[np.ndarray, " positions"]
    gathering: Float[np.ndarray, " positions"]

    def __init__(self, step: StepBlocks):
        ops = [(i, op) for i, block in enumerate(step.blocks) for op in block.ops]
        kernels = [(i, op) for i, op in ops if op.family is not None]
        exchanges = [(i, op) for i, op in ops if op.collective is not None]
        ordered = kernels + exchanges
        self.names = tuple(op.name for _, op in ordered)
        self.families = tuple(op.family for _, op in kernels if op.family is not None)
        self.rates = tuple(op.rate for _, op in kernels)
        self.kinds = tuple(op.collective for _, op in exchanges if op.collective is not None)
        self.block_names = tuple(block.name for block in step.blocks)
        self.target, self.draft = step.target, step.draft
        self.kernels = _lower([op for _, op in kernels], _KERNEL_COLUMNS)
        self.exchanges = _lower([op for _, op in exchanges], _EXCHANGE_COLUMNS)
        self.block = np.array([i for i, _ in ordered], np.int64)
        self.gathers = np.array([float(op.stream is Stream.GATHER) for _, op in ordered])
        self.sequence = np.array(step.sequence, np.int64)
        self.gathering = np.isin(self.sequence, self.block[self.gathers > 0]).astype(np.float64)

    def work(self, values: Values) -> tuple[Work, Float[Array, " kernels"]]:
        """FLOPs, bytes and shape of every kernel, and the share that each takes in the step."""
        flops, moved, share, *shape = self.kernels.evaluate(values).reshape(len(_KERNEL_COLUMNS), -1)
        return Work(self.families, self.rates, flops, moved, *shape), share

    def collectives(self, values: Values) -> tuple[Collective, Float[Array, " exchanges"]]:
        """Payload, group size and stride of every exchange, and the share that each takes in the step."""
        payload, size, stride, share, *shape = self.exchanges.evaluate(values).reshape(len(_EXCHANGE_COLUMNS), -1)
        return Collective(self.kinds, payload, size, stride, *shape), share

    def op_seconds(self, ar: Arithmetic, machine: Machine, values: Values) -> Float[Array, " ops"]:
        """Seconds of one execution of each op; an op of an alternative not taken counts zero."""
        values = values if isinstance(values, Vector) else Vector(values)
        work, kernel_share = self.work(values)
        collective, exchange_share = self.collectives(values)
        return jnp.concatenate(
            [
                kernel_share * compute_seconds(ar, machine, work),
                exchange_share * collective_seconds(ar, machine, collective),
            ]
        )

    def gather_share(self, cut: Cut) -> Float[Array, " positions"]:
        """Which positions gather their weights: sharded layers of the target, and the draft's layers where asked."""
        share = jnp.zeros(len(self.sequence))
        layers = window(cut.sharded_first, cut.sharded_last, len(self.target))
        share = share.at[self.target.start : self.target.stop].set(layers)
        share = share.at[self.draft.start : self.draft.stop].set(cut.sharded_draft)
        return share * self.gathering * jnp.clip(jnp.log2(cut.weight_shard), 0.0, 1.0)

    def schedule(self, ar: Arithmetic, seconds: Float[Array, " ops"], cut: Cut, host: Float[Array, ""]) -> Schedule:
        """Op times summed into blocks, blocks laid out in the order of the step."""
        main = self._by_block(seconds * (1.0 - self.gathers))[self.sequence]
        share = self.gather_share(cut)
        gather = self._by_block(seconds * self.gathers)[self.sequence] * share
        return schedule(ar, main, gather, share, host)

    def _by_block(self, seconds: Float[Array, " ops"]) -> Float[Array, " blocks"]:
        member = (self.block[None, :] == np.arange(len(self.block_names))[:, None]).astype(np.float64)
        return member @ seconds


def _lower(ops: Sequence[Op], columns: Sequence[str]) -> Lowered:
    return Lowered([_column(op, name) for name in columns for op in ops])


def _column(op: Op, name: str) -> Expr:
    return op.shape.get(name, ZERO) if name in _SHAPES else getattr(op, name)
