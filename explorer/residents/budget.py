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

from explorer.residents.line import AS_PUBLISHED, Group, Holding, Line
from explorer.residents.lines import fixed_lines, kv_bytes_a_token
from hw.arithmetic import Arithmetic
from hw.machine import Machine
from layouts.blocks import StepBlocks
from layouts.cut import Scalar
from layouts.expression import ONE, Expr
from layouts.lowering import Lowered, Vector
from layouts.models.model import Model

_BUFFERS: Final = 2  # staging buffers: one is read while the other is written
LEAST_FRACTION: Final = 0.05
MOST_FRACTION: Final = 0.97
_GROUP_TOKENS: Final = "global_kv_tokens"


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
    staged: tuple[tuple[Expr, ...], tuple[Expr, ...]] = eqx.field(static=True)
    lowered: Lowered
    staging: Lowered
    slot_bytes: Lowered

    def __init__(self, model: Model, step: StepBlocks, prefill: bool = False, holding: Holding = AS_PUBLISHED):
        self.lines = fixed_lines(model, prefill, holding)
        self.lowered = Lowered([line.size for line in self.lines])
        drafted = dict.fromkeys(step.blocks[step.sequence[i]].staging for i in step.draft)
        kinds = [block.staging for block in step.blocks[1 : 1 + len(model.kinds)]]
        self.staged = tuple(kinds), tuple(size for size in drafted if size)
        self.staging = Lowered([*self.staged[0], *self.staged[1]])
        # bytes of one token slot: in the pool, and in each line that maps the pool of a group
        mapped = [line.size.substitute({_GROUP_TOKENS: ONE}) * self._maps(line) for line in self.lines]
        self.slot_bytes = Lowered([kv_bytes_a_token(model), *mapped])

    @staticmethod
    def _maps(line: Line) -> int:
        return int(_GROUP_TOKENS in line.size.names)

    def of(self, group: Group) -> Float[np.ndarray, " lines"]:
        """Mask of a group's lines."""
        return np.array([float(line.group is group) for line in self.lines])

    @property
    def high(self) -> Float[np.ndarray, " lines"]:
        """Each line at the upper end of its range, relative to its size."""
        return np.array([line.high for line in self.lines])


def memory(
    ar: Arithmetic,
    table: MemoryTable,
    values: Mapping[str, Scalar],
    context: ArrayLike,
    budget: Budget,
    machine: Machine,
) -> Memory:
    """Divide one GPU's memory for a layout. `values` are its quantities (`layouts.quantities`, `layouts.stages`)."""
    context = jnp.asarray(context, dtype=float)
    wanted = values["requests"] * values["pp"]
    slots = wanted + jnp.asarray(budget.extra_slots, dtype=float) + 1.0
    dispatched = ar.maximum(jnp.asarray(budget.least_dispatch, dtype=float), values["moe_rows"])
    stacked = Vector(
        {
            **values,
            "slots": slots,
            "draft_window": jnp.asarray(budget.draft_window, dtype=float),
            "dispatch_tokens": _given(budget.dispatch_tokens, dispatched),
            _GROUP_TOKENS: 0.0,  # what maps the pool is sized once the pool is
        }
    )
    sizes = table.lowered.bytes(ar, stacked)
    slot = table.slot_bytes.bytes(ar, stacked)
    slot_bytes, mapped = slot[0], slot[1:] * values["dcp"]
    staging, draft_staging = _staging(ar, values, table.staging.bytes(ar, stacked), len(table.staged[0]))
    free_before = machine.free_bytes - (sizes * table.of(Group.START)).sum()
    static = (sizes * table.of(Group.WEIGHTS)).sum() + staging + draft_staging
    state = (sizes * table.of(Group.STATE)).sum()
    reserved = table.of(Group.RESERVE)
    fraction = _given(
        budget.mem_fraction,
        _largest_fraction(free_before, (sizes * reserved * table.high).sum(), static + state, mapped.sum(), slot_bytes),
    )
    pools = free_before * fraction - static
    for_kv = pools - state
    per_request = context * slot_bytes / values["dcp"]
    kv_tokens = ar.floor(jnp.maximum(for_kv, 0.0) / jnp.maximum(slot_bytes, 1.0)) * jnp.minimum(slot_bytes, 1.0)
    needed = static + state + wanted * per_request
    running = ar.minimum(wanted, ar.floor(jnp.maximum(for_kv, 0.0) / jnp.maximum(per_request, 1.0)))
    sizes = sizes + mapped * kv_tokens
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


def _largest_fraction(free: Scalar, reserved: Scalar, held: Scalar, mapped: Scalar, slot_bytes: Scalar) -> Scalar:
    """The fraction f at which (1 - f) free is what lives in the reserve: `reserved`, and `mapped` bytes a pool slot.

    The pool has (f free - held) / slot_bytes slots, so the equation is linear in f.
    """
    share = mapped / jnp.maximum(slot_bytes, 1.0)
    fraction = (free - reserved + share * held) / (free * (1.0 + share))
    return jnp.clip(fraction, LEAST_FRACTION, MOST_FRACTION)


def _staging(
    ar: Arithmetic, values: Mapping[str, Scalar], sizes: Float[Array, " kinds"], kinds: int
) -> tuple[Scalar, Scalar]:
    """Two buffers of the largest gathered layer, for the target's `kinds` and for the draft's that follow them.

    Nothing where nothing is sharded.
    """
    sharded = jnp.clip(jnp.log2(values["weight_shard"]), 0.0, 1.0)
    target = draft = jnp.zeros(())
    for kind in range(kinds):
        target = ar.maximum(target, sizes[kind] * jnp.minimum(values[f"sharded_{kind}"], 1.0))
    for size in sizes[kinds:]:
        draft = ar.maximum(draft, size)
    return _BUFFERS * target * sharded, _BUFFERS * draft * sharded * values["sharded_draft"]
