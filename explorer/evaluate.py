"""One layout, or thousands at once, priced: rules are checked before, ledger and schedule complete in here."""

from collections.abc import Mapping
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from explorer.residents.budget import Budget, Memory, MemoryTable, memory
from explorer.residents.line import AS_PUBLISHED, Holding
from explorer.schedule import Schedule
from explorer.step import StepTable
from hw.arithmetic import Arithmetic, Exact
from hw.compat import COMPILE_TO_RUN_OFTEN, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.blocks import step_blocks
from layouts.cut import Cut, Scalar
from layouts.load import Load
from layouts.lowering import Vector
from layouts.models.model import Model
from layouts.program_side import program_quantities
from layouts.quantities import Traits, above_one, quantities
from layouts.stages import heaviest_stages, layer_counts
from layouts.traits import traits_of

# CPU work of a step (scheduling, control sync, launch): hidden while the GPU's step is longer. 3.07 ms is the control
# sync that article 002 prints for 16 ranks on two hosts.
HOST_SECONDS: Final = 3.07e-3


# Layouts priced by one call: large enough to fill vector units, small enough to stay in the cache.
CHUNK: Final = 2048


class Case(eqx.Module):
    """A question as numbers: what all candidate layouts of one request share. Seconds of the CPU in a step: `host`
    where attention groups must agree, `launch` in any, once a pipeline stage, of a stage of one GPU and of several, and
    the ends of its range. `overlap`: 1 where the engine runs the shared expert under the combine."""

    load: Load
    budget: Budget
    machine: Machine
    host: Float[ArrayLike, ""] = HOST_SECONDS
    launch: Float[ArrayLike, " kinds"] = eqx.field(default_factory=lambda: np.zeros(2))
    launch_ends: Float[ArrayLike, "ends kinds"] = eqx.field(default_factory=lambda: np.zeros((2, 2)))
    overlap: Float[ArrayLike, ""] = 0.0


class Tables(eqx.Module):
    """A model lowered to arrays: ops and ledger of one phase. `program`: ops are those of the JAX program."""

    step: StepTable
    memory: MemoryTable
    traits: Traits = eqx.field(static=True)
    kind_of_layer: tuple[int, ...] = eqx.field(static=True)
    stages: Float[np.ndarray, "stages 2"]
    program: bool = eqx.field(static=True)

    def __init__(self, model: Model, prefill: bool = False, holding: Holding = AS_PUBLISHED, program: bool = False):
        blocks = step_blocks(model, prefill, program)
        self.step = StepTable(blocks)
        self.memory = MemoryTable(model, blocks, prefill, holding)
        self.traits = traits_of(model)
        self.kind_of_layer = model.kind_of_layer
        self.stages = heaviest_stages(model)
        self.program = program

    def values(self, ar: Arithmetic, cut: Cut, load: Load, machine: Machine) -> Mapping[str, Scalar]:
        """Every quantity of a layout that does not depend on the budget."""
        counts = layer_counts(cut, self.kind_of_layer, self.stages)
        values = {**quantities(ar, cut, load, self.traits, machine.sms), **counts}
        if not self.program:
            return values
        return {**values, **program_quantities(ar, values, self.traits, machine.sms, load.room)}


class Evaluation(eqx.Module):
    """What a layout costs and holds, in seconds, bytes and tokens a second.

    `step` is one decode step, or one prefill chunk of every replica. `tokens_per_second` counts accepted
    tokens of the whole instance (prefill: prompt tokens). `slack` is the memory left once the load is held.
    """

    step: Scalar
    tokens_per_second: Scalar
    kv_tokens: Scalar
    kv_tokens_instance: Scalar
    running: Scalar
    slack: Scalar
    remainder: Scalar

    @property
    def feasible(self) -> Bool[Array | np.ndarray, ""]:
        """Whether the load fits and the reserve holds what lives in it."""
        return (self.slack >= 0) & (self.remainder >= 0)


def evaluate(ar: Arithmetic, tables: Tables, cut: Cut, case: Case) -> Evaluation:
    """Complete ledger and complete schedule of one layout."""
    values = tables.values(ar, cut, case.load, case.machine)
    return summary(cut, case, timing(ar, tables, cut, case, values), holding(ar, tables, cut, case, values))


def timing(ar: Arithmetic, tables: Tables, cut: Cut, case: Case, values: Mapping[str, Scalar]) -> Schedule:
    """When everything runs."""
    vector = Vector(values)
    seconds = tables.step.op_seconds(ar, case.machine, vector)
    contention = tables.step.contention(ar, case.machine, vector)
    return tables.step.schedule(ar, case.machine, seconds, contention, cut, host_seconds(case, values), case.overlap)


def host_seconds(case: Case, values: Mapping[str, Scalar]) -> Array:
    """CPU work of a step: attention groups agree on shapes before every step, a single one has nobody to ask; every
    stage is started by itself."""
    agreed = jnp.asarray(case.host, dtype=float) * jnp.asarray(values["has_groups"])
    one, several = jnp.asarray(case.launch, dtype=float)
    ranks = above_one({"stage": jnp.asarray(values["replicas"] * values["tp"])})
    return agreed + (one + (several - one) * ranks["stage"]) * jnp.asarray(values["pp"])


def holding(ar: Arithmetic, tables: Tables, cut: Cut, case: Case, values: Mapping[str, Scalar]) -> Memory:
    """Where the memory goes."""
    return memory(ar, tables.memory, values, case.load.context, case.budget, case.machine)


def summary(cut: Cut, case: Case, schedule: Schedule, held: Memory) -> Evaluation:
    """The figures by which layouts are compared."""
    load = case.load
    if load.prefill:
        # with pp stages, pp chunks are in flight and one leaves the pipeline every 1/pp of a pass
        tokens = cut.replicas * jnp.asarray(load.chunk, dtype=float) * cut.pp
    else:
        tokens = jnp.asarray(load.concurrency, dtype=float) * jnp.asarray(load.accept, dtype=float)
    groups = cut.replicas * cut.attn_dp
    return Evaluation(
        step=schedule.step,
        tokens_per_second=tokens / schedule.step,
        kv_tokens=held.kv_tokens,
        kv_tokens_instance=held.kv_tokens * cut.dcp * groups,
        running=held.running * groups,
        slack=held.slack,
        remainder=held.remainder,
    )


@kept(COMPILE_TO_RUN_OFTEN)
def _evaluate_chunk(tables: Tables, cuts: Cut, case: Case) -> Evaluation:
    return jax.vmap(lambda cut: evaluate(Exact(), tables, cut, case))(cuts)


@in_x64
def evaluate_batch(tables: Tables, cuts: Cut, case: Case) -> Evaluation:
    """Exact evaluation of any number of valid layouts (leading axis of every leaf of `cuts`), as NumPy arrays.

    They go through one compiled program in chunks of one size, so that neither another count nor another load, budget
    or machine compiles again.
    """
    count = cuts.pp.shape[0]
    padded = -(-count // CHUNK) * CHUNK
    rows = np.minimum(np.arange(padded), count - 1)
    chunks = [
        _evaluate_chunk(tables, jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[part], cuts), case)
        for part in np.split(rows, padded // CHUNK)
    ]
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts])[:count], *chunks)
