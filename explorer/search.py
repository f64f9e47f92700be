"""Gradient search: many relaxed starts at once, sharpness annealed, memory and latency limits by multipliers."""

from typing import Any, Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from explorer.evaluate import Case, Evaluation, Tables, evaluate
from explorer.relax import Bounds, Free, Relaxed, bounds_of, case_from, cut_from, random_starts, rule_excess
from explorer.request import Objective, Request
from hw.arithmetic import Smooth
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.programs import kept
from layouts.cut import Cut, Scalar

STARTS: Final = 32
STEPS: Final = 240
_ROUND: Final = 20  # steps between two updates of the multipliers
_FIRST_TAU: Final = 0.25
_LAST_TAU: Final = 1e-3
_RATE: Final = 0.15
_LIMITS: Final = 3 + 5  # memory, reserve and latency, then the rules of `rule_excess`
_PENALTY: Final = 4.0  # augmented Lagrangian, a unit of constraint (relative memory, relative TPOT, one doubling)


class Goal(eqx.Module):
    """What is minimised, and the latency limit (infinite for none)."""

    objective: Objective = eqx.field(static=True)
    max_tpot: Float[Array, ""] | float
    gpus: Float[Array, ""] | float

    def loss(self, evaluation: Evaluation, xp: Any = jnp) -> Scalar:
        """Natural logarithm of what is minimised: relative changes count alike in every objective.

        `xp` is the array module: NumPy for evaluations that are there already, which spares a compilation.
        """
        rate = evaluation.tokens_per_second
        return {
            Objective.STEP: lambda: xp.log(evaluation.step),
            Objective.THROUGHPUT: lambda: -xp.log(rate),
            Objective.GPU_SECONDS: lambda: xp.log(self.gpus / rate),
            Objective.KV: lambda: -xp.log(xp.maximum(evaluation.kv_tokens_instance, 1.0)),
        }[self.objective]()

    def excess(self, evaluation: Evaluation, case: Case, xp: Any = jnp) -> Float[Array, " limits"]:
        """Logarithms of what memory, its reserve and the latency limit are asked for, over what they give.

        Positive where a limit is broken; far beyond one, a logarithm keeps its multiplier within bounds.
        """
        memory = xp.asarray(case.machine.memory_bytes)
        tpot = evaluation.step / xp.asarray(case.load.accept, dtype=float)
        limit = xp.asarray(self.max_tpot, dtype=float)
        free = xp.isinf(limit)
        late = xp.where(free, -1.0, xp.log(tpot / xp.where(free, 1.0, limit)))
        short = xp.log1p(-xp.stack([evaluation.slack, evaluation.remainder]) / memory)
        return xp.concatenate([short, late[None]])


class Found(NamedTuple):
    """Where the starts ended, best first: relaxed cuts (leading axis: starts), concurrencies, losses."""

    cuts: Cut
    concurrency: Float[Array | np.ndarray, " starts"]
    losses: Float[np.ndarray, " starts"]


class _State(NamedTuple):
    relaxed: Relaxed
    loss: Float[Array, " starts"]
    moments: optax.OptState
    multipliers: Float[Array, "starts limits"]


def goal_of(request: Request) -> Goal:
    """The goal of a request."""
    limit = np.inf if request.max_tpot is None else request.max_tpot
    return Goal(request.objective, np.float64(limit), np.float64(request.gpus))


@in_x64
def search(request: Request, tables: Tables, starts: int = STARTS) -> Found:
    """Run every start of a request to its end. Deterministic in `request.seed`."""
    bounds, free = bounds_of(request.site), Free.of(request)
    final, losses = _descend(
        random_starts(request.seed, starts), tables, request.case(), bounds, free, goal_of(request)
    )
    losses = np.nan_to_num(np.asarray(losses), nan=np.inf)
    order = np.argsort(losses)
    relaxed = jax.tree.map(lambda leaf: np.asarray(leaf)[order], final)
    return Found(*_mapped(relaxed, request.case(), bounds, free), losses[order])


@kept(COMPILE_TO_RUN_ONCE)
def _mapped(relaxed: Relaxed, case: Case, bounds: Bounds, free: Free) -> tuple[Cut, Array]:
    def one(r: Relaxed) -> tuple[Cut, Array]:
        return cut_from(r, bounds), jnp.asarray(case_from(r, case, free).load.concurrency, dtype=float)

    return jax.vmap(one)(relaxed)


@kept(COMPILE_TO_RUN_ONCE)
def _descend(
    starts: Relaxed, tables: Tables, case: Case, bounds: Bounds, free: Free, goal: Goal
) -> tuple[Relaxed, Float[Array, " starts"]]:
    """All starts in one vmap; returns their ends and the augmented losses of the last, sharpest step."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, STEPS, alpha=0.1))

    def priced(relaxed: Relaxed, tau: Scalar) -> tuple[Scalar, Float[Array, " limits"]]:
        cut, posed = cut_from(relaxed, bounds), case_from(relaxed, case, free)
        evaluation = evaluate(Smooth(tau), tables, cut, posed)
        return goal.loss(evaluation), jnp.concatenate([goal.excess(evaluation, posed), rule_excess(cut, bounds)])

    def lagrangian(relaxed: Relaxed, done: Scalar, multipliers: Array) -> tuple[Scalar, Array]:
        tau = _FIRST_TAU * (_LAST_TAU / _FIRST_TAU) ** done
        loss, excess = priced(relaxed, tau)
        pushed = jnp.maximum(multipliers + _PENALTY * excess, 0.0)
        return loss + ((pushed**2 - multipliers**2) / (2.0 * _PENALTY)).sum(), excess

    # the starts are batched inside the loop: its body is traced once, with all of them
    descent = jax.vmap(jax.value_and_grad(lagrangian, has_aux=True), in_axes=(0, None, 0))

    def step(state: _State, index: Array) -> tuple[_State, None]:
        (loss, excess), slope = descent(state.relaxed, index / (STEPS - 1.0), state.multipliers)
        slope = jax.tree.map(lambda g: jnp.clip(g, -10.0, 10.0), slope)
        with jax.numpy_dtype_promotion("standard"):  # Optax counts its steps in integers
            updates, moments = optimizer.update(slope, state.moments)
        raised = jnp.maximum(state.multipliers + _PENALTY * excess, 0.0)
        multipliers = jnp.where(index % _ROUND == _ROUND - 1, raised, state.multipliers)
        return _State(eqx.apply_updates(state.relaxed, updates), loss, moments, multipliers), None

    count = starts.dcp.shape[0]
    moments = optimizer.init(eqx.filter(starts, eqx.is_inexact_array))
    state = _State(starts, jnp.zeros(count), moments, jnp.zeros((count, _LIMITS)))
    end, _ = jax.lax.scan(step, state, jnp.arange(float(STEPS)))
    return end.relaxed, end.loss
