"""From the ledger's lines to what a layout can hold: the budget, the pools, the requests that run.

The engines' order: memory is measured after the process groups exist, weights and staging buffers are loaded, a share
of (1 - mem_fraction) is left alone, state pools take one slot a request, and the KV pool takes what remains.
Source: serving rules, Memory (SGLang `_profile_available_bytes`, `_handle_max_mamba_cache`).
"""

from collections.abc import Mapping
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.memory.lines import Group, Line, fixed_lines, kv_bytes_a_token
from hw.arithmetic import Arithmetic
from hw.machine import Machine
from layouts.blocks import StepBlocks
from layouts.lowering import Lowered, Vector
from layouts.models.model import Model

Scalar = Float[Array, ""]
_BUFFERS: Final = 2  # staging buffers: one is read while the other is written
LEAST_FRACTION: Final = 0.05
MOST_FRACTION: Final = 0.97


class Budget(eqx.Module):
    """The parameters that divide a GPU's memory; NaN stands for "derive it".

    `mem_fraction`: share of free memory for weights and pools; derived, the largest that leaves what lives in the
    reserve its room. `extra_slots`: request slots beyond those that run. `dispatch_tokens`: rows a rank may dispatch
    (derived: those of the step, and at least `least_dispatch`). `draft_window`: draft slots a request slot.
    """

    mem_fraction: Float[ArrayLike, ""] = np.nan
    extra_slots: Float[ArrayLike, ""] = 0.0
    dispatch_tokens: Float[ArrayLike, ""] = np.nan
    draft_window: Float[ArrayLike, ""] = 1.0
    least_dispatch: Float[ArrayLike, ""] = 128.0


class Memory(eqx.Module):
    """Bytes on the GPU of the heaviest stage, and what they admit. `lines` follow `MemoryTable.lines`.

    `needed` is what the load asks of the static share, `slack` what is left of it once the load is held (negative: it
    does not fit), `remainder` what is left of the reserve at run time. `kv_tokens` are those of one rank's pool.
    """

    lines: Float[Array, " lines"]
    staging: Scalar
    draft_staging: Scalar
    free_before: Scalar
    mem_fraction: Scalar
    budget: Scalar
    kv_bytes_a_token: Scalar
    kv_tokens: Scalar
    running: Scalar
    wanted: Scalar
    slots: Scalar
    needed: Scalar
    slack: Scalar
    remainder: Scalar


class MemoryTable(eqx.Module):
    """The ledger of a model lowered to arrays."""

    lines: tuple[Line, ...] = eqx.field(static=True)
    lowered: Lowered
    staging: Lowered
    slot_bytes: Lowered

    def __init__(self, model: Model, step: StepBlocks, prefill: bool = False):
        self.lines = fixed_lines(model, prefill)
        self.lowered = Lowered([line.size for line in self.lines])
        drafted = sorted({step.sequence[i] for i in step.draft} - {step.sequence[i] for i in step.target})
        kinds = [block.staging for block in step.blocks[1 : 1 + len(model.kinds)]]
        self.staging = Lowered([*kinds, *(step.blocks[i].staging for i in drafted if step.blocks[i].staging)])
        self.slot_bytes = Lowered([kv_bytes_a_token(model)])

    def of(self, group: Group) -> Float[np.ndarray, " lines"]:
        """Mask of a group's lines."""
        return np.array([float(line.group is group) for line in self.lines])

    @property
    def high(self) -> Float[np.ndarray, " lines"]:
        """Each line at the upper end of its range, relative to its size."""
        return np.array([line.high for line in self.lines])


def memory(
    ar: Arithmetic, table: MemoryTable, values: Mapping[str, Array], context: ArrayLike, budget: Budget, machine: Machine
) -> Memory:
    """Divide one GPU's memory for a layout. `values` are its quantities (`layouts.quantities`, `layouts.stages`)."""
    context = jnp.asarray(context, dtype=float)
    wanted = values["requests"] * values["pp"]
    slots = wanted + jnp.asarray(budget.extra_slots, dtype=float) + 1.0
    values = {
        **values,
        "slots": slots,
        "draft_window": jnp.asarray(budget.draft_window, dtype=float),
        "dispatch_tokens": _given(
            budget.dispatch_tokens, ar.maximum(jnp.asarray(budget.least_dispatch, dtype=float), values["moe_rows"])
        ),
        # the slot map needs the KV pool, which needs nothing of the reserve: first its size for the load
        "global_kv_tokens": wanted * context,
    }
    stacked = Vector(values)
    sizes = table.lowered.bytes(ar, stacked)
    staging, draft_staging = _staging(ar, values, table.staging.bytes(ar, stacked))
    free_before = machine.free_bytes - (sizes * table.of(Group.START)).sum()
    static = (sizes * table.of(Group.WEIGHTS)).sum() + staging + draft_staging
    state = (sizes * table.of(Group.STATE)).sum()
    reserved = table.of(Group.RESERVE)
    derived = jnp.clip(1.0 - (sizes * reserved * table.high).sum() / free_before, LEAST_FRACTION, MOST_FRACTION)
    fraction = _given(budget.mem_fraction, derived)
    pools = free_before * fraction - static
    slot_bytes = table.slot_bytes.bytes(ar, stacked)[0]
    for_kv = pools - state
    per_request = context * slot_bytes / values["dcp"]
    kv_tokens = ar.floor(jnp.maximum(for_kv, 0.0) / jnp.maximum(slot_bytes, 1.0)) * jnp.minimum(slot_bytes, 1.0)
    needed = static + state + wanted * per_request
    running = ar.minimum(wanted, ar.floor(jnp.maximum(for_kv, 0.0) / jnp.maximum(per_request, 1.0)))
    return Memory(
        lines=sizes,
        staging=staging,
        draft_staging=draft_staging,
        free_before=free_before,
        mem_fraction=fraction,
        budget=pools,
        kv_bytes_a_token=slot_bytes,
        kv_tokens=kv_tokens,
        running=running,
        wanted=wanted,
        slots=slots,
        needed=needed,
        slack=free_before * fraction - needed,
        remainder=free_before * (1.0 - fraction) - (sizes * reserved).sum(),
    )


def _given(value: ArrayLike, derived: Scalar) -> Scalar:
    """The value, or what is derived where it is NaN."""
    value = jnp.asarray(value, dtype=float)
    return jnp.where(jnp.isnan(value), derived, value)


def _staging(
    ar: Arithmetic, values: Mapping[str, Array], sizes: Float[Array, " kinds"]
) -> tuple[Scalar, Scalar]:
    """Two buffers of the largest gathered layer, for the target and for the draft; nothing where nothing is sharded."""
    sharded = jnp.clip(jnp.log2(values["weight_shard"]), 0.0, 1.0)
    kinds = sum(name.startswith("sharded_") and name != "sharded_draft" for name in values)
    target = draft = jnp.zeros(())
    for kind in range(kinds):
        target = ar.maximum(target, sizes[kind] * jnp.minimum(values[f"sharded_{kind}"], 1.0))
    for size in sizes[kinds:]:
        draft = ar.maximum(draft, size)
    return _BUFFERS * target * sharded, _BUFFERS * draft * sharded * values["sharded_draft"]
