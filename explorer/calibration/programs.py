"""Steps of our own program, timed whole, as observations: many layouts and loads of a few models."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.calibration.factors import adjusted
from explorer.calibration.lowered import LoweredStep, lowered
from explorer.calibration.observed import Observed
from explorer.evaluate import Tables
from explorer.request import Request
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.layout import Layout
from layouts.models.model import Model

STEP_WIDTH: Final = 0.05  # what the formulas miss of one step


class Asked(NamedTuple):
    """One step that ran: its name, what it is, and its seconds (1 where it is only to be predicted)."""

    name: str
    request: Request
    layout: Layout
    seconds: float = 1.0


class ProgramSteps(Observed):
    """Steps of programs, in stacks that share a model's tables; `order` brings the stacks in the order asked."""

    file: str = eqx.field(static=True)
    format: str = eqx.field(static=True)
    date: str = eqx.field(static=True)
    left_out: tuple[str, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    seconds: Float[np.ndarray, " observations"]
    widths: Float[np.ndarray, " observations"]
    stacks: tuple[LoweredStep, ...]
    order: np.ndarray

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        return jnp.concatenate([_steps(stack, machine, overhead) for stack in self.stacks])[self.order]


@in_x64
def program_steps(asked: Sequence[Asked], file: str, date: str) -> ProgramSteps:
    """Steps whose requests are of programs (`explorer.request.of_program`)."""
    stacked: list[tuple[Tables, Model, list[tuple[int, LoweredStep]]]] = []
    for number, one in enumerate(asked):
        model = one.request.model
        found = next((entry for entry in stacked if entry[1] == model), None)
        if found is None:
            found = (Tables(model, holding=one.request.holding, program=True), model, [])
            stacked.append(found)
        found[2].append((number, lowered(one.request, one.layout, found[0])))
    numbers = [number for _, _, members in stacked for number, _ in members]
    return ProgramSteps(
        file=file,
        format="steps of programs",
        date=date,
        left_out=(),
        names=tuple(one.name for one in asked),
        seconds=np.array([one.seconds for one in asked]),
        widths=np.full(len(asked), STEP_WIDTH),
        stacks=tuple(_stack([step for _, step in members]) for _, _, members in stacked),
        order=np.argsort(numbers),
    )


@in_x64
def adjusted_seconds(
    machine: Machine, steps: ProgramSteps, logs: Float[np.ndarray, " factors_and_engine"]
) -> Float[np.ndarray, " observations"]:
    """Seconds of the steps by a machine whose curves are moved by the logarithms of factors, the CPU's work by the
    last, as `explorer.calibration.solve` finds them."""
    return np.asarray(_adjusted(machine.anonymous(), steps, logs))


@kept(COMPILE_TO_RUN_ONCE)
def _adjusted(machine: Machine, steps: ProgramSteps, logs: Float[ArrayLike, " factors_and_engine"]) -> Array:
    logs = jnp.asarray(logs)
    return steps.predict(adjusted(machine, logs[:-1]), jnp.exp(logs[-1]))


def _stack(steps: Sequence[LoweredStep]) -> LoweredStep:
    """Steps of one model as one whose case, cut and values have a leading axis."""
    first = steps[0]

    def over(part: str) -> Any:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(getattr(step, part) for step in steps))

    return LoweredStep(over("case"), first.tables, over("cut"), over("values"), first.counts, first.member)


def _steps(stack: LoweredStep, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " steps"]:
    def one(case: Any, cut: Any, values: Any) -> Array:
        case = eqx.tree_at(lambda c: c.launch, case, case.launch * overhead)
        return LoweredStep(case, stack.tables, cut, values, stack.counts, stack.member).schedule(machine).step

    return jax.vmap(one)(stack.case, stack.cut, stack.values)
