"""A mixture of experts over a mesh: experts over `ep`, their width over `expert_tp`, copies of the whole in `moe_dp`.

Around it, `Exchange` brings the rows of the attention groups and takes them back; the norm before the experts stands
between the two.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from layouts.collectives import axis_index, psum, vary
from layouts.dense.reference import GatedMLP, gated_mlp
from layouts.kernels import PLAIN
from layouts.mesh import Axes
from layouts.moe.dispatch import by_all_to_all, by_gather
from layouts.moe.exchange import Exchange, Form
from layouts.moe.grouped import to_local
from layouts.moe.reference import Experts, Latent, Mixture, MoEWeights, from_latent, route, to_latent
from layouts.moe.shape import MoE


def weight_shapes(moe: MoE) -> MoEWeights:
    """Shape of every weight of one layer, whole; None where the model has none."""
    experts, inner, width, hidden, shared = (
        moe.experts,
        moe.intermediate,
        moe.width,
        moe.hidden,
        moe.shared_intermediate,
    )
    each: Any = ((experts, 2, inner, width), (experts, width, inner))
    biases: Any = ((experts, 2, inner), (experts, width)) if moe.bias else (None, None)
    latent: Any = ((moe.latent, hidden), (hidden, moe.latent), (moe.latent,))
    together: Any = ((2, shared, hidden), (hidden, shared))
    rows: Any = {"router": (experts, hidden), "router_bias": (experts,) if moe.bias else None}
    return MoEWeights(
        **rows,
        experts=Experts(*each, *biases),
        correction_bias=(experts,) if moe.correction_bias else None,  # pyright: ignore[reportArgumentType]
        latent=Latent(*latent) if moe.latent else None,
        shared=GatedMLP(*together) if shared else None,
    )


def weight_specs(moe: MoE, axes: Axes, form: Form) -> MoEWeights:
    """PartitionSpec of each weight (None where the model has none). Under all-to-all the shared expert is whole."""
    spec: Callable[..., Any] = axes.spec  # a spec stands where its weight does
    shared = () if form is Form.ALL_TO_ALL else ("ep", "expert_tp")
    return MoEWeights(
        router=spec(),
        experts=Experts(
            w13=spec("ep", None, "expert_tp", None),
            w2=spec("ep", None, "expert_tp"),
            w13_bias=spec("ep", None, "expert_tp") if moe.bias else None,
            w2_bias=spec("ep", None) if moe.bias else None,
        ),
        router_bias=spec() if moe.bias else None,
        correction_bias=spec() if moe.correction_bias else None,
        latent=Latent(spec(), spec(), spec()) if moe.latent else None,
        shared=GatedMLP(spec(None, shared, None), spec(None, shared)) if moe.shared_intermediate else None,
    )


def moe(
    x: Float[Array, "moe_rows hidden"],
    real: Bool[Array, " moe_rows"],
    weights: MoEWeights,
    mixture: Mixture,
    exchange: Exchange,
    form: str = PLAIN,
) -> Float[Array, "moe_rows hidden"]:
    """Output for the rows that `exchange.spread` returned, ready for `exchange.leave`.

    `real`: `exchange.real(counts)`; rows without a token cost no expert and get zeros from the routed ones. `form` of
    the grouped GEMMs (`layouts.moe.grouped.FORMS`).
    """
    if exchange.form is Form.ALL_TO_ALL:
        return _exchanged(x, real, weights, mixture, exchange, form) + _shared(x, weights, mixture)
    part = _gathered(x, real, weights, mixture, exchange, form)
    if weights.latent is None:
        return part + _shared(x, weights, mixture)
    return _summed_before_norm(part, _shared(x, weights, mixture), weights.latent, mixture, exchange)


def _shared(x: Array, weights: MoEWeights, mixture: Mixture) -> Array:
    """The shared expert; zero, a single number, where there is none."""
    return jnp.zeros((), x.dtype) if weights.shared is None else gated_mlp(x, weights.shared, mixture.activation)


def _exchanged(x: Array, real: Array, weights: MoEWeights, mixture: Mixture, exchange: Exchange, form: str) -> Array:
    """Routed experts of a rank's own rows; whole sums come back."""
    routing, narrow = route(x, weights, mixture.router), to_latent(x, weights.latent)
    how = (exchange.axes, exchange.wire, form)
    summed = by_all_to_all(narrow, routing, real, weights.experts, mixture.activation, *how)
    return from_latent(summed, weights.latent, mixture.eps)


def _gathered(x: Array, real: Array, weights: MoEWeights, mixture: Mixture, exchange: Exchange, form: str) -> Array:
    """This rank's part of the routed experts' sum, on the width that they act on, for rows that all ranks which share
    the experts have."""
    axes: Axes = exchange.axes
    routing, held = route(x, weights, mixture.router), weights.experts.w13.shape[0]
    local = to_local(routing.experts, real, axis_index(axes["ep"]) * held, held)
    narrow = to_latent(x, weights.latent)
    return by_gather(narrow, local, routing.weights, weights.experts, mixture.activation, axes, form)


def _summed_before_norm(part: Array, shared: Array, latent: Latent, mixture: Mixture, exchange: Exchange) -> Array:
    """The whole output: the latent sum has a norm behind it, so parts are summed before it, those of the shared expert
    in a message of their own (SGLang 0.5.23, models/kimi_k3.py: `_reduce_latent`, `_reduce_shared`)."""
    out = from_latent(psum(vary(part, exchange.sharers), exchange.sharers), latent, mixture.eps)
    return out + psum(vary(shared, exchange.sharers), exchange.sharers) if shared.ndim else out
