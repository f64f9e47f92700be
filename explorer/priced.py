"""One layout of one request with everything that was computed on the way: what cost, ledger and comparison read.

Compiled once a model; the results are NumPy throughout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from explorer.contention import AHEAD
from explorer.evaluate import Case, Tables, holding, host_seconds
from explorer.request import Request
from explorer.residents.budget import Memory
from explorer.schedule import Schedule
from explorer.step import StepTable
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from hw.time import CollectiveTerms, ComputeTerms, collective_terms, compute_terms
from hw.work import sent_bytes
from layouts.cut import Cut, Scalar, cut_of
from layouts.layout import Layout


class Parts(eqx.Module):
    """The parts of a step, ops in the order of `StepTable.names`; zero for an alternative not taken.

    `seconds` and `sent` bytes are those of one execution, `alone` its seconds without contention between streams,
    which `seconds` has on average over the step, `contention` the fraction by which it is longer beside the other.
    `terms` are the parts of its time alone: fixed, memory or link, compute or NIC, chain. `group`: size and stride of
    an exchange's group. `gathered`: 1 at positions that gather.
    """

    values: Mapping[str, Scalar]
    seconds: Float[Array, " ops"]
    alone: Float[Array, " ops"]
    contention: Float[Array, " ops"]
    terms: Float[Array, "ops 4"]
    ctas: Float[Array, " ops"]
    group: Float[Array, "ops 2"]
    sent: Float[Array, " ops"]
    gathered: Float[Array, " positions"]
    schedule: Schedule


@dataclass(frozen=True)
class Timed:
    """The step of one layout of one request."""

    request: Request
    layout: Layout
    tables: Tables
    parts: Parts

    @property
    def table(self) -> StepTable:
        return self.tables.step

    @property
    def values(self) -> Mapping[str, float]:
        """The layout's quantities."""
        return {name: float(value) for name, value in self.parts.values.items()}

    @property
    def schedule(self) -> Schedule:
        return self.parts.schedule

    @property
    def step(self) -> float:
        """Seconds of the step."""
        return float(self.schedule.step)

    @property
    def counts(self) -> Float[np.ndarray, " ops"]:
        """Executions of each op in the step; of a gather's, those at positions that gather."""
        blocks = len(self.table.block_names)
        every = np.bincount(self.table.sequence, minlength=blocks)[self.table.block]
        gathering = np.bincount(self.table.sequence, self.parts.gathered, blocks)[self.table.block]
        return np.where(self.table.gathers > 0, gathering, every)

    @property
    def on_host(self) -> bool:
        """Whether the CPU's work outlasts the GPU's, and so is all that the step waits for."""
        return float(self.schedule.host) > float(self.schedule.gpu)

    @property
    def issued(self) -> Int[np.ndarray, " positions"]:
        """At the start of which position the gather of each one is issued: the nearest before it that gathers too, at
        most `AHEAD` away (`explorer.schedule`)."""
        gathers = self.parts.gathered > 0
        starts = []
        for i in range(len(gathers)):
            first = max(i - AHEAD, 0)
            starts.append(next((j for j in range(i - 1, first, -1) if gathers[j]), first))
        return np.array(starts)

    @property
    def kernels(self) -> int:
        """How many of the ops, from the first, are kernels; the others are exchanges."""
        return len(self.table.families)

    def bound(self, op: int) -> str:
        """The largest part of an op's time: latency, memory or compute; latency, link or nic."""
        fields = ComputeTerms._fields if op < self.kernels else CollectiveTerms._fields
        return fields[int(np.argmax(self.parts.terms[op]))]

    def crosses(self, op: int) -> bool:
        """Whether an exchange's group leaves the scale-up domain."""
        size, stride = self.parts.group[op]
        return size > max(float(self.request.machine.domain) / stride, 1.0)


@dataclass(frozen=True)
class Priced(Timed):
    """Step and memory. `faster` and `slower` are the step at the ends of the machine's 80 % range, and of that of the
    program's launch."""

    faster: float
    slower: float
    held: Memory


@in_x64
def priced(request: Request, layout: Layout, tables: Tables | None = None) -> Priced:
    """Price a layout that passed the rules. `tables` may be handed in where several layouts share a model."""
    tables = tables or Tables(request.model, request.prefill, request.holding, request.program)
    parts, faster, slower, held = jax.device_get(_price(request.case(), tables, cut_of(layout)))
    return Priced(request, layout, tables, parts, float(faster), float(slower), held)


def parts_of(case: Case, tables: Tables, cut: Cut) -> Parts:
    """The parts of a step, traced in the exact arithmetic."""
    ar, table, machine = Exact(), tables.step, case.machine
    values = tables.values(ar, cut, case.load, machine)
    alone = table.op_seconds(ar, machine, values)
    contention = table.contention(ar, machine, values)
    schedule = table.schedule(ar, machine, alone, contention, cut, host_seconds(case, values), case.overlap)
    work, kernel_share = table.work(values)
    collective, exchange_share = table.collectives(values)
    share = jnp.concatenate([kernel_share, exchange_share])
    terms = [compute_terms(ar, machine, work), collective_terms(ar, machine, collective)]
    none = jnp.zeros_like(work.bytes)
    sent = sent_bytes(collective.kind, collective.payload, collective.size)
    return Parts(
        values=values,
        seconds=alone + schedule.slowed / jnp.maximum(table.executions(cut), 1.0),
        alone=alone,
        contention=contention,
        terms=jnp.concatenate([jnp.stack(t, axis=1) for t in terms]) * share[:, None],
        ctas=jnp.concatenate([work.ctas, jnp.zeros_like(sent)]),
        group=jnp.concatenate([jnp.ones((len(none), 2)), jnp.stack([collective.size, collective.stride], axis=1)]),
        sent=jnp.concatenate([none, sent]) * share,
        gathered=table.gather_share(cut),
        schedule=schedule,
    )


@kept(COMPILE_TO_RUN_ONCE)
def _price(case: Case, tables: Tables, cut: Cut) -> Any:
    ar, parts = Exact(), parts_of(case, tables, cut)

    def step(machine: Machine, launch: Float[Array, " kinds"]) -> Array:
        seconds = tables.step.op_seconds(ar, machine, parts.values)
        contention = tables.step.contention(ar, machine, parts.values)
        host = host_seconds(eqx.tree_at(lambda c: c.launch, case, launch), parts.values)
        return tables.step.schedule(ar, machine, seconds, contention, cut, host, case.overlap).step

    ends = jax.tree.map(lambda *leaves: jnp.stack(leaves), case.machine.faster(), case.machine.slower())
    faster, slower = jax.vmap(step)(ends, jnp.asarray(case.launch_ends, dtype=float))
    return parts, faster, slower, holding(ar, tables, cut, case, parts.values)
