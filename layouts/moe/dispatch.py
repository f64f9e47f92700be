"""Expert-parallel dispatch and combine: each choice of a row travels to the rank that holds the expert, and back.

The capacity form: every rank sends every other the same number of rows, so that shapes are fixed. With room for the
most choices that one rank can make of another's experts nothing is dropped.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from layouts import kernels
from layouts.collectives import all_to_all, axis_index, axis_size
from layouts.dense.activation import Activation
from layouts.mesh import Axes
from layouts.moe.grouped import NOWHERE, grouped
from layouts.moe.kernel import order_by_expert
from layouts.moe.reference import Experts
from layouts.moe.router import Routing
from layouts.moe.wire import PLAIN, Wire


def worst_case(rows: int, topk: int, held: int) -> int:
    """Rows that one rank may have to send to another that holds `held` experts."""
    return rows * min(topk, held)


def by_all_to_all(
    x: Float[Array, "rows width"],
    routing: Routing,
    real: Bool[Array, " rows"],
    experts: Experts,
    activation: Activation,
    axes: Axes,
    capacity: int | None = None,
    wire: Wire = PLAIN,
    form: str = kernels.PLAIN,
) -> Float[Array, "rows width"]:
    """Weighted sum of each row's experts, wherever they are. `experts`: those of this rank, contiguous in rank order.

    `capacity`: rows that a rank can send to another, by default the most that may be needed; with less, the choices
    beyond it are dropped. `wire`: what rows travel as on the way out; they come back in their own dtype. `form` of the
    grouped GEMMs (`layouts.moe.grouped.FORMS`).
    """
    rows, topk = routing.experts.shape
    ranks, held = axis_size(axes["ep"]), experts.w13.shape[0]
    capacity = worst_case(rows, topk, held) if capacity is None else capacity
    place = _places(routing.experts, real, ranks, held, capacity, form)
    send = jnp.zeros((ranks * capacity, x.shape[1]), x.dtype).at[place].set(jnp.repeat(x, topk, axis=0), mode="drop")
    number = (routing.experts % held).reshape(-1)  # the destination's own number of the expert
    local = jnp.full((ranks * capacity,), NOWHERE, number.dtype).at[place].set(number, mode="drop")
    arrived = wire.decode(all_to_all(wire.encode(send), axes["ep"], 0, 0), x.dtype)
    wanted = all_to_all(local, axes["ep"], 0, 0)
    mean = rows * topk / held
    done = grouped(arrived, wanted[:, None], experts, activation, jnp.bool_(True), form=form, mean=mean)[:, 0]
    back = all_to_all(done.astype(x.dtype), axes["ep"], 0, 0)
    parts = jnp.take(back, place, axis=0, mode="fill", fill_value=0).reshape(rows, topk, -1)
    return weighted(parts, routing.weights).astype(x.dtype)


def by_gather(
    x: Float[Array, "moe_rows width"],
    local: Int[Array, "moe_rows topk"],
    weights: Float[Array, "moe_rows topk"],
    experts: Experts,
    activation: Activation,
    axes: Axes,
    form: str = kernels.PLAIN,
) -> Float[Array, "moe_rows width"]:
    """This rank's part of the weighted sum, for rows that every rank which shares the experts has."""
    one_of_those_sharing = axis_index(axes["expert_tp"]) == 0
    mean = local.size / (experts.w13.shape[0] * axis_size(axes["ep"]))
    parts = grouped(x, local, experts, activation, one_of_those_sharing, form=form, mean=mean)
    return weighted(jnp.where((local == NOWHERE)[:, :, None], 0.0, parts), weights).astype(x.dtype)


def weighted(parts: Float[Array, "rows topk width"], weights: Float[Array, "rows topk"]) -> Float[Array, "rows width"]:
    """The sum of each row's choices, float32. No dot: it is bound by memory, and a GPU would round its operands."""
    return (weights[:, :, None] * parts.astype(jnp.float32)).sum(axis=1)


def _places(
    experts: Int[Array, "rows topk"], real: Bool[Array, " rows"], ranks: int, held: int, capacity: int, form: str
) -> Int[Array, " choices"]:
    """Place of each choice in the send buffer of (rank, capacity) rows; past its end for what is not sent."""
    to = jnp.where(real[:, None], experts // held, ranks).reshape(-1)
    before = _before(to, ranks, form)
    return jnp.where((to < ranks) & (before < capacity), to * capacity + before, ranks * capacity)


def _before(to: Int[Array, " choices"], ranks: int, form: str) -> Int[Array, " choices"]:
    """How many choices before each go to the same rank; anything for one that goes to none."""
    if form == kernels.PLAIN:
        to_rank = (to[:, None] == jnp.arange(ranks, dtype=to.dtype)[None, :]).astype(jnp.int32)
        return ((lax.cumsum(to_rank, axis=0) - to_rank) * to_rank).sum(axis=1)
    order = order_by_expert(jnp.where(to < ranks, to, NOWHERE), ranks, interpret=form == kernels.INTERPRETED)
    return order.row - order.starts[jnp.minimum(to, ranks - 1)]
