"""A step as numbers that no curve changes: its work and exchanges; a machine then prices it, with a slope."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.evaluate import Case, Tables, host_seconds
from explorer.request import Request
from explorer.schedule import Schedule
from explorer.step import StepTable
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from hw.time import collective_seconds, compute_seconds
from hw.work import Collective, Work
from layouts.cut import Cut, cut_of
from layouts.layout import Layout


class LoweredStep(eqx.Module):
    """One step of a layout under a load: what every op has to do, before any machine is asked how long it takes.

    `shares`: what of each op the layout runs, 0 for an alternative not taken. `counts`: executions of an op of the main
    stream; `member`: 1 where a position is of a kind of layer.
    """

    table: StepTable
    cut: Cut
    work: Work
    collective: Collective
    shares: Float[Array | np.ndarray, " ops"]
    host: Float[Array | np.ndarray, ""]
    counts: Float[np.ndarray, " ops"]
    member: Float[np.ndarray, "kinds positions"]

    def op_seconds(self, machine: Machine) -> Float[Array, " ops"]:
        """Seconds of one execution of each op that runs."""
        ar = Exact()
        each = (compute_seconds(ar, machine, self.work), collective_seconds(ar, machine, self.collective))
        return jnp.asarray(self.shares) * jnp.concatenate(each)

    def schedule(self, machine: Machine, seconds: Float[Array, " ops"]) -> Schedule:
        """The step laid out in time."""
        return self.table.schedule(Exact(), machine, seconds, self.cut, jnp.asarray(self.host))


@in_x64
def lowered(request: Request, layout: Layout, tables: Tables | None = None) -> LoweredStep:
    """The step of a valid layout. `tables` may be handed in where several layouts share a model."""
    tables = tables or Tables(request.model, request.prefill)
    cut = cut_of(layout)
    work, collective, shares, host = jax.device_get(_lowered(request.case(), tables, cut))
    table = tables.step
    member = (table.sequence[None, :] == np.arange(len(table.block_names))[:, None]).astype(np.float64)
    counts = member.sum(axis=1)[table.block]
    return LoweredStep(table, cut, work, collective, shares, host, counts, member)


@kept(COMPILE_TO_RUN_ONCE)
def _lowered(case: Case, tables: Tables, cut: Cut) -> tuple[Work, Collective, Array, Array]:
    values = tables.values(Exact(), cut, case.load, case.machine)
    work, kernels = tables.step.work(values)
    collective, exchanges = tables.step.collectives(values)
    return work, collective, jnp.concatenate([kernels, exchanges]), host_seconds(case, values)
