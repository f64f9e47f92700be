"""Expert-parallel dispatch and combine without padding: only the rows that an expert is to see travel.

Beside the form of fixed shapes (`layouts.moe.dispatch`), which sends every row to every rank. A rank's choices stand
sorted by expert, so that those for one rank are one slice of its message, and on arrival the counts by expert alone say
which expert a row is for. So no numbers travel with the rows: a second exchange of them would cost a launch, columns of
them a copy of every row and a bitcast for each dtype. A row travels once for each of its experts.

What arrives has room for the worst case. The audit counts whole operands: the choices on the way out, that room on the
way back.

XLA has this exchange for GPUs and TPUs, none for CPUs. On GPUs it is by default one kernel up to 8 ranks, and beyond a
send and a receive for each slice, for whose sizes the host waits (openxla/xla, ragged_all_to_all_kernel.h and
ragged_all_to_all_thunk.cc): so a peer gets one slice, not one for each of its experts. On two H200s it is right, and
takes 5 to 95 times as long as the other form's exchanges (`experiments/h200_dispatch.py`): no layer's program takes it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts import kernels
from layouts.collectives import Slices, all_gather, axis_index, axis_size, ragged_all_to_all
from layouts.dense.activation import Activation
from layouts.mesh import Axes
from layouts.moe.dispatch import weighted
from layouts.moe.grouped import NOWHERE, grouped
from layouts.moe.reference import Experts
from layouts.moe.router import Routing
from layouts.moe.wire import PLAIN, Wire


def by_ragged_all_to_all(
    x: Float[Array, "rows width"],
    routing: Routing,
    real: Bool[Array, " rows"],
    experts: Experts,
    activation: Activation,
    axes: Axes,
    wire: Wire = PLAIN,
    form: str = kernels.PLAIN,
) -> Float[Array, "rows width"]:
    """Weighted sum of each row's experts, wherever they are. `experts`: those of this rank, contiguous in rank order.

    The result is that of `by_all_to_all`; rows without a token get zeros, and are not sent. The choices of a row are
    different experts, as a router's are: room is kept for no more. `wire`: what rows travel as on the way out; they
    come back in their own dtype. `form` of the grouped GEMMs (`layouts.moe.grouped.FORMS`).
    """
    rows, topk = routing.experts.shape
    ranks, held = axis_size(axes["ep"]), experts.w13.shape[0]
    chosen = jnp.where(real[:, None], routing.experts, ranks * held).reshape(-1)  # past the last expert: not sent
    order = jnp.argsort(chosen, stable=True)
    by_expert = jnp.zeros(ranks * held, jnp.int32).at[chosen].add(1, mode="drop")
    counts = all_gather(by_expert[None], axes["ep"], 0).reshape(ranks, ranks, held)  # sender, receiver, its expert
    between, own = counts.sum(axis=2), axis_index(axes["ep"])
    sent = wire.encode(x)[order // topk]
    room = jnp.zeros((ranks * worst_case(rows, topk, held), sent.shape[1]), sent.dtype)
    arrived = wire.decode(ragged_all_to_all(sent, room, slices(between, own), axes["ep"]), x.dtype)
    wanted = wanted_experts(counts[:, own], len(room))
    mean = rows * topk / held
    done = grouped(arrived, wanted[:, None], experts, activation, jnp.bool_(True), form=form, mean=mean)
    done = done[:, 0].astype(x.dtype)
    back = ragged_all_to_all(done, jnp.zeros((rows * topk, x.shape[1]), x.dtype), slices(between.T, own), axes["ep"])
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    parts = jnp.where(real[:, None, None], back[place].reshape(rows, topk, -1), jnp.zeros((), x.dtype))
    return weighted(parts, routing.weights).astype(x.dtype)


def worst_case(rows: int, topk: int, held: int) -> int:
    """Rows that one rank may have to send to another that holds `held` experts."""
    return rows * min(topk, held)


def slices(between: Int[Array, "ranks ranks"], own: Int[Array, ""]) -> Slices:
    """The slices of rank `own`, where rank i sends `between[i, j]` rows to rank j.

    Every rank's message stands in the order of receivers, what it gets in the order of senders; so the transpose
    takes all rows back to where they came from.
    """
    starts, places = jnp.cumsum(between, axis=1) - between, jnp.cumsum(between, axis=0) - between
    return Slices(starts[own], between[own], places[own], between[:, own])


def wanted_experts(arriving: Int[Array, "ranks held"], room: int) -> Int[Array, " room"]:
    """The rank's own number of the expert that each row of the room is for, NOWHERE where none arrived: senders one
    after the other, the rows of each sorted by expert."""
    ends = jnp.cumsum(arriving.reshape(-1))
    nth = jnp.searchsorted(ends, jnp.arange(room, dtype=ends.dtype), side="right", method="scan_unrolled")
    return jnp.where(nth < ends.size, nth % arriving.shape[1], NOWHERE)
