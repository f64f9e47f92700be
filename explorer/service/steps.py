"""Seconds of the steps that a service runs: decode at any number of running requests, prefill at any chunk."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from explorer.evaluate import Case, Tables, holding, timing
from explorer.request import Request
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.machine import Machine
from hw.programs import kept
from layouts.cut import Cut, Scalar, cut_of
from layouts.layout import Layout

Column = Float[Array | np.ndarray, " loads"]


class Steps(eqx.Module):
    """Steps of one replica at several loads, seconds on the GPU; `fast` and `slow` at the ends of the machine's 80 %
    range.

    `fixed`: the part of `gpu` that kernels and exchanges take however little they do, of which `launches` are made.
    `running`: how many of the requests of each load its KV pools hold.
    """

    loads: Column
    gpu: Column
    fast: Column
    slow: Column
    fixed: Column
    launches: Column
    running: Column

    @property
    def capacity(self) -> Scalar:
        """Requests that run at once when more wait than fit."""
        return jnp.max(jnp.asarray(self.running))

    def with_seconds(self, of: str) -> "Steps":
        """The same loads with the seconds of another column, `fast` or `slow`; what is fixed scales with them."""
        seconds = getattr(self, of)
        return replace(self, gpu=seconds, fixed=self.fixed * seconds / self.gpu)

    def at(self, load: ArrayLike) -> "Steps":
        """Every column at another load: linear between loads, level before the first, and on as before beyond the
        last, since a step of that many tokens or requests has no part left that does not grow."""
        between = lambda column: jnp.interp(jnp.asarray(load), self.loads, column, right="extrapolate")  # noqa: E731
        return jax.tree.map(between, self)


@in_x64
def steps(
    request: Request,
    layout: Layout,
    loads: Column,
    contexts: ArrayLike,
    tables: Tables | None = None,
) -> Steps:
    """Price a replica of a valid layout at several loads: its running requests in decode, tokens of its chunk in
    prefill, of all attention groups together.

    `contexts`: mean tokens of a request, one a load or one for all. `tables` may be handed in where several questions
    share a model.
    """
    tables = tables or Tables(request.model, request.prefill, request.holding)
    loads = np.asarray(loads, np.float64)
    lengths = np.array(np.broadcast_to(np.asarray(contexts, np.float64), loads.shape))
    found = jax.device_get(_steps(request.case(), tables, cut_of(layout), loads, lengths))
    return Steps(loads, *found)


@kept(COMPILE_TO_RUN_ONCE)
def _steps(case: Case, tables: Tables, cut: Cut, loads: Column, contexts: Column) -> tuple[Column, ...]:
    ar = Exact()
    at_ends = (case.machine.faster(), case.machine.slower())
    probes = (_with_latency(case.machine, 0.0), _with_latency(case.machine, 1.0))
    machines = jax.tree.map(lambda *leaves: jnp.stack(leaves), case.machine, *at_ends, *probes)

    def one(load: Scalar, context: Scalar) -> tuple[Scalar, ...]:
        of = (lambda c: c.load.chunk) if case.load.prefill else (lambda c: c.load.concurrency)
        whole = load if case.load.prefill else load * cut.replicas  # concurrency is of all replicas, a chunk of one
        at = eqx.tree_at(lambda c: (of(c), c.load.context), case, (whole, context))
        values = tables.values(ar, cut, at.load, at.machine)
        held = holding(ar, tables, cut, at, values)

        def gpu(machine: Machine) -> Scalar:
            moved = eqx.tree_at(lambda c: c.machine, at, machine)
            return timing(ar, tables, cut, moved, values).gpu

        middle, fast, slow, without, counted = jax.vmap(gpu)(machines)
        return middle, fast, slow, middle - without, counted - without, held.running * cut.attn_dp

    return jax.vmap(one)(jnp.asarray(loads), jnp.asarray(contexts))


def _with_latency(machine: Machine, seconds: float) -> Machine:
    """A machine on which every launch costs this much before it does anything."""
    fixed = (machine.curves.latency, machine.exchange.latency)
    level = tuple(jnp.full_like(column, seconds) for column in fixed)
    return eqx.tree_at(lambda m: (m.curves.latency, m.exchange.latency), machine, level)
