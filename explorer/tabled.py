"""A priced layout with the seconds of public op tables in place of the curves', and its step laid out again.

Which op a table covers, and where in it, follows from the problem that the op states (`layouts.op.Problem`); of an
exchange, from its kind, group and payload.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.evaluate import Case
from explorer.priced import Parts, Priced
from explorer.step import StepTable
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from hw.tables import Kind, OpTables, Reading
from hw.tables.forms import FORMS
from hw.work import RATES, CollectiveKind, Work
from layouts.blocks import step_blocks
from layouts.cut import Cut, Scalar, cut_of
from layouts.expression import Expr
from layouts.lowering import Vector
from layouts.op import Op, Problem

# Seconds below which an op is one that does not run: formulas add as much to what is 0 (`hw.time`).
_NOTHING: Final = 1e-12
_BY_LIBRARY: Final = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_TO_ALL,
)


@dataclass(frozen=True)
class Coverage:
    """Of the `ops` that take time in a step, how many tables cover, and the share of all work on both streams that
    these take. `sources` are the tables."""

    engine: str
    covered: int
    ops: int
    share: float
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Tabled(Priced):
    """Step and memory where tables say what some ops take: `sources` of those, by their place in the step."""

    engine: str
    sources: Mapping[int, str]

    @property
    def coverage(self) -> Coverage:
        """How much of the step is measured."""
        spent = self.parts.seconds * self.counts
        share = sum(spent[op] for op in self.sources) / spent.sum()
        ops = int(np.count_nonzero(spent > _NOTHING))
        return Coverage(self.engine, len(self.sources), ops, float(share), tuple(sorted({*self.sources.values()})))


def tabled(found: Priced, tables: OpTables) -> Tabled:
    """The step with measured seconds wherever the tables cover an op.

    What tables do not cover, and contention between streams, is priced as before. The ends of the range differ in those
    alone: a measured op is taken to be as measured.
    """
    readings = _readings(found, tables)
    measured = np.full(len(found.table.names), np.nan)
    for op, reading in readings.items():
        measured[op] = reading.seconds
    parts, faster, slower = _again(found, measured)
    base = {field.name: getattr(found, field.name) for field in fields(Priced)}
    ends = {"parts": parts, "faster": float(faster), "slower": float(slower)}
    sources = {op: reading.source for op, reading in readings.items()}
    return Tabled(**{**base, **ends}, engine=tables.engine, sources=sources)


def _readings(found: Priced, tables: OpTables) -> dict[int, Reading]:
    """What tables say of the ops that take time. Ops that a row times together share it as their curves would.

    A reading faster than the datasheet lets the op be is one of another problem: fewer experts that got rows, say.
    """
    values = {name: float(value) for name, value in found.parts.values.items()}
    alone = np.where(found.parts.alone > _NOTHING, found.parts.alone, 0.0)
    said: dict[int, Reading] = {}
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    ops, least = _ops(found), _least(found)
    for i, op in enumerate(ops):
        if not alone[i]:
            continue
        if op.problem is not None and FORMS[op.problem.kind].together:
            together[int(found.table.block[i]), _key(op.problem, values)].append(i)
        elif (reading := _reading(found, tables, i, op, values)) is not None and reading.seconds >= least[i]:
            said[i] = reading
    for members in together.values():
        reading = _asked(tables, ops[members[0]].problem, values)
        if reading is not None and reading.seconds >= least[members].sum():
            whole = alone[members].sum()
            said |= {i: replace(reading, seconds=reading.seconds * float(alone[i] / whole)) for i in members}
    return said


def _least(found: Priced) -> Float[np.ndarray, " ops"]:
    """Seconds below which the datasheet lets no kernel be, memory or tensor cores; exchanges have none here."""
    machine, table = found.request.machine, found.table
    work = jax.device_get(_work(table, found.parts.values))
    peak = np.asarray(machine.peak)[[RATES.index(rate) for rate in table.rates]]
    least = np.maximum(work.bytes / float(machine.hbm_bandwidth), work.flops / peak)
    return np.concatenate([least, np.zeros(len(table.names) - len(least))])


@in_x64
def _work(table: StepTable, values: Mapping[str, Scalar]) -> Work:
    return table.work(Vector(values))[0]


def _key(problem: Problem, values: Mapping[str, float]) -> int:
    return hash((problem.kind, problem.form, *(_number(size, values) for size in problem.sizes.values())))


def _ops(found: Priced) -> list[Op]:
    """The ops of the step in the order of its table: kernels, then exchanges."""
    blocks = step_blocks(found.request.model, found.request.prefill, found.request.program).blocks
    every = [op for block in blocks for op in block.ops]
    ordered = [op for op in every if op.family is not None] + [op for op in every if op.collective is not None]
    if tuple(op.name for op in ordered) != found.table.names:
        raise ValueError("the step's table was made of other blocks than its request asks for")
    return ordered


def _reading(found: Priced, tables: OpTables, place: int, op: Op, values: Mapping[str, float]) -> Reading | None:
    if op.collective is None:
        return _asked(tables, op.problem, values)
    if op.collective not in _BY_LIBRARY or found.crosses(place):
        return None
    sizes = {"ranks": _number(op.size, values), "bytes": _number(op.payload, values)}
    kinds = [Kind.LIBRARY, *([Kind.OWN_ALL_REDUCE] if op.collective is CollectiveKind.ALL_REDUCE else [])]
    readings = [reading for kind in kinds if (reading := tables.ask(kind, op.collective, sizes)) is not None]
    # an engine has a kernel of its own and hands over to the library where that is faster
    return min(readings, key=lambda reading: reading.seconds, default=None)


def _asked(tables: OpTables, problem: Problem | None, values: Mapping[str, float]) -> Reading | None:
    if problem is None:
        return None
    sizes = {name: _number(size, values) for name, size in problem.sizes.items()}
    return tables.ask(problem.kind, problem.form, sizes)


def _number(size: Expr, values: Mapping[str, Any]) -> float:
    return float(size.evaluate(values))


@in_x64
def _again(found: Priced, measured: np.ndarray) -> tuple[Parts, Array, Array]:
    request = found.request
    arguments = (request.case(), found.table, cut_of(found.layout), found.parts, jnp.asarray(measured))
    return jax.device_get(_lay_out(*arguments))


@kept(COMPILE_TO_RUN_ONCE)
def _lay_out(case: Case, table: StepTable, cut: Cut, parts: Parts, measured: Float[Array, " ops"]) -> Any:
    """The parts of the step with measured seconds where there are any, and the step at both ends of the range."""
    ar, host = Exact(), parts.schedule.host

    def put(curves: Float[Array, " ops"]) -> Float[Array, " ops"]:
        return jnp.where(jnp.isnan(measured), curves, measured)

    def step(machine: Machine) -> Array:
        seconds = put(table.op_seconds(ar, machine, parts.values))
        contention = table.contention(ar, machine, parts.values)
        return table.schedule(ar, machine, seconds, contention, cut, host, case.overlap).step

    alone = put(parts.alone)
    schedule = table.schedule(ar, case.machine, alone, parts.contention, cut, host, case.overlap)
    seconds = alone + schedule.slowed / jnp.maximum(table.executions(cut), 1.0)
    faster, slower = step(case.machine.faster()), step(case.machine.slower())
    return replace(parts, alone=alone, seconds=seconds, schedule=schedule), faster, slower
