"""A step as quantities that no curve changes: a machine then prices it, with a slope."""

from collections.abc import Mapping

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from explorer.evaluate import Case, Tables, timing
from explorer.request import Request
from explorer.schedule import Schedule
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.cut import Cut, Scalar, cut_of
from layouts.layout import Layout


class LoweredStep(eqx.Module):
    """One step of a layout under a load, before any machine is asked how long it takes.

    `counts`: executions of an op of the main stream; `member`: 1 where a position is of a kind of layer.
    """

    case: Case
    tables: Tables
    cut: Cut
    values: Mapping[str, Scalar]
    counts: Float[np.ndarray, " ops"]
    member: Float[np.ndarray, "kinds positions"]

    def op_seconds(self, machine: Machine) -> Float[Array, " ops"]:
        """Seconds of one execution of each op alone; 0 for an alternative not taken."""
        return self.tables.step.op_seconds(Exact(), machine, self.values)

    def schedule(self, machine: Machine) -> Schedule:
        """The step laid out in time."""
        case = eqx.tree_at(lambda c: c.machine, self.case, machine.anonymous())
        return timing(Exact(), self.tables, self.cut, case, self.values)


@in_x64
def lowered(request: Request, layout: Layout, tables: Tables | None = None) -> LoweredStep:
    """The step of a valid layout. `tables` may be handed in where several layouts share a model."""
    tables = tables or Tables(request.model, request.prefill, request.holding, request.program)
    case, cut, table = request.case(), cut_of(layout), tables.step
    values = jax.device_get(_values(case, tables, cut))
    member = (table.sequence[None, :] == np.arange(len(table.block_names))[:, None]).astype(np.float64)
    return LoweredStep(case, tables, cut, values, member.sum(axis=1)[table.block], member)


@kept(COMPILE_TO_RUN_ONCE)
def _values(case: Case, tables: Tables, cut: Cut) -> Mapping[str, Scalar]:
    return tables.values(Exact(), cut, case.load, case.machine)
