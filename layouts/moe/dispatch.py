"""Expert-parallel dispatch and combine: a row travels once to each rank that may hold some of its experts, and what
these give it there comes back as one sum.

Shapes are fixed before a step and a row's experts may be anywhere: every rank gets every row.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from layouts import kernels
from layouts.collectives import all_gather, all_to_all, axis_index, axis_size
from layouts.dense.activation import Activation
from layouts.mesh import Axes
from layouts.moe.grouped import NOWHERE, grouped, to_local
from layouts.moe.reference import Experts
from layouts.moe.router import Routing
from layouts.moe.wire import PLAIN, Wire


def by_all_to_all(
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

    `wire`: what rows travel as on the way out; sums come back in the dtype of x, one from each rank, and are added in
    float32. `form` of the grouped GEMMs (`layouts.moe.grouped.FORMS`).
    """
    ep, held = axes["ep"], experts.w13.shape[0]
    arrived = wire.decode(all_gather(wire.encode(x), ep, 0), x.dtype)
    chosen, weights = _choices_of_all(routing, real, axes)
    local = to_local(chosen, chosen[:, 0] != NOWHERE, axis_index(ep) * held, held)  # NOWHERE stays so on every rank
    sums = by_gather(arrived, local, weights, experts, activation, axes, form)
    back = all_to_all(sums, ep, 0, 0).reshape(axis_size(ep), *x.shape)
    return back.astype(jnp.float32).sum(axis=0).astype(x.dtype)


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


def _choices_of_all(
    routing: Routing, real: Bool[Array, " rows"], axes: Axes
) -> tuple[Int[Array, "every topk"], Float[Array, "every topk"]]:
    """Experts (NOWHERE for a row without a token) and their weights of the rows of all ranks, in one message."""
    chosen = jnp.where(real[:, None], routing.experts, NOWHERE)
    weights = jnp.where(real[:, None], routing.weights, 0.0).astype(jnp.float32)  # of padding they may be NaN
    bits = lax.bitcast_convert_type(weights, chosen.dtype)
    chosen, bits = jnp.split(all_gather(jnp.concatenate([chosen, bits], axis=1), axes["ep"], 0), 2, axis=1)
    return chosen, lax.bitcast_convert_type(bits, jnp.float32)
