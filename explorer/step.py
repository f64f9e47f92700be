"""The time of one step of any layout: ops lowered to arrays, priced by the machine, laid out on streams."""

from collections.abc import Sequence
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from explorer.contention import Order, contended
from explorer.schedule import Schedule, schedule
from hw.arithmetic import Arithmetic
from hw.machine import Machine
from hw.time import collective_seconds, compute_seconds, compute_terms
from hw.work import (
    COLLECTIVES,
    EXCHANGE_SHAPES,
    FAMILIES,
    LAUNCHES,
    RATES,
    SHAPES,
    Collective,
    CollectiveKind,
    Family,
    Rate,
    Work,
)
from layouts.blocks import StepBlocks
from layouts.cut import Cut, window
from layouts.expression import ONE, ZERO, Expr
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
    covered: Float[np.ndarray, " ops"]
    covering: Float[np.ndarray, " ops"]
    order: Order

    def __init__(self, step: StepBlocks):
        ops = [(i, op) for i, block in enumerate(step.blocks) for op in block.ops]
        kernels = [(i, op) for i, op in ops if op.family is not None]
        exchanges = [(i, op) for i, op in ops if op.collective is not None]
        ordered = [*kernels, *exchanges]
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
        covers = {(i, op.beside) for i, op in kernels if op.beside is not None}
        self.covered = np.array([float(op.beside is not None) for _, op in ordered])
        self.covering = np.array([float((i, op.collective) in covers) for i, op in ordered])
        self.order = _order(step, ordered)
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

    def schedule(
        self,
        ar: Arithmetic,
        machine: Machine,
        seconds: Float[Array, " ops"],
        contention: Float[Array, " ops"],
        cut: Cut,
        host: Float[Array, ""],
        overlap: Float[ArrayLike, ""] = 0.0,
    ) -> Schedule:
        """Op times summed into blocks, blocks laid out in the order of the step, beside each other's streams.

        `overlap` is 1 where the engine runs ops under the exchange that they may run beside: what is hidden there
        takes no time of the main stream.
        """
        masks = (1.0 - self.gathers, self.gathers, self.covered, self.covering)
        main, gather, covered, covering = (self._by_block(seconds * mask) for mask in masks)
        hidden = overlap * ar.minimum(covered, covering)
        exposed = seconds * (1.0 - self.covered * (hidden / jnp.where(covered > 0, covered, 1.0))[self.block])
        share = self.gather_share(cut)
        main, gather = (main - hidden)[self.sequence], gather[self.sequence] * share
        copies = machine.exchange.contention[COLLECTIVES.index(CollectiveKind.COPY_GATHER)]
        work = contended(self.order, exposed, contention, copies, main, gather, share)
        longer = self._over_positions(work.gather - gather) * self._copying
        return schedule(ar, work._replace(slowed=work.slowed + longer), share, host)

    def executions(self, cut: Cut) -> Float[Array, " ops"]:
        """How often each op runs in a step; a gather's where its position gathers."""
        every = self._over_positions(jnp.ones(len(self.sequence)))
        return jnp.where(self.gathers > 0, self._over_positions(self.gather_share(cut)), every)

    def _over_positions(self, column: Float[Array, " positions"]) -> Float[Array, " ops"]:
        """The sum of a column over all positions of an op's block."""
        return jnp.zeros(len(self.block_names)).at[self.sequence].add(column)[self.block]

    @property
    def _copying(self) -> Float[np.ndarray, " ops"]:
        """1 at the copies from peers."""
        owners = (*self.families, *self.kinds)
        return np.array([float(owner is CollectiveKind.COPY_GATHER) for owner in owners])

    def contention(self, ar: Arithmetic, machine: Machine, values: Values) -> Float[Array, " ops"]:
        """By which fraction longer each op takes beside copies: of a kernel only what it spends on memory is longer."""
        values = values if isinstance(values, Vector) else Vector(values)
        terms = compute_terms(ar, machine, self.work(values)[0])
        whole = terms.latency + terms.memory + terms.compute + terms.chain
        on_memory = terms.memory / jnp.where(whole > 0, whole, 1.0)
        family = np.array([FAMILIES.index(f) for f in self.families], int)
        rate = np.array([RATES.index(r) for r in self.rates], int)
        kind = np.array([COLLECTIVES.index(k) for k in self.kinds], int)
        kernels = machine.curves.contention[family, rate] * on_memory
        return jnp.concatenate([kernels, machine.exchange.contention[kind]])

    def _by_block(self, seconds: Float[Array, " ops"]) -> Float[Array, " blocks"]:
        member = (self.block[None, :] == np.arange(len(self.block_names))[:, None]).astype(np.float64)
        return member @ seconds


def _order(step: StepBlocks, ordered: Sequence[tuple[int, Op]]) -> Order:
    """Where the ops of the main stream stand in their blocks, and the blocks in the step."""
    place = {(block, id(op)): i for i, (block, op) in enumerate(ordered)}
    main = [[op for op in block.ops if op.stream is Stream.MAIN] for block in step.blocks]
    return Order(
        ops=tuple(tuple(place[b, id(op)] for op in ops) for b, ops in enumerate(main)),
        sends=tuple(tuple(float(op.collective is not None) for op in ops) for ops in main),
        positions=tuple(tuple(p for p, at in enumerate(step.sequence) if at == b) for b in range(len(main))),
    )


def _lower(ops: Sequence[Op], columns: Sequence[str]) -> Lowered:
    return Lowered([_column(op, name) for name in columns for op in ops])


def _column(op: Op, name: str) -> Expr:
    if name not in _SHAPES:
        return getattr(op, name)
    return op.shape.get(name, ONE if name == LAUNCHES else ZERO)
