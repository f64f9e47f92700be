"""A mixture of experts on one device: every token through each of its experts, and through the shared one."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.dense.activation import Activation
from layouts.dense.reference import GatedMLP, gated_mlp
from layouts.linear import linear
from layouts.moe.router import Router, Routing
from layouts.residual.reference import rms_norm


class Experts(NamedTuple):
    """Routed experts, on the width that they act on; gate and up in one array (w13, as engines name it)."""

    w13: Float[Array, "experts 2 intermediate width"]
    w2: Float[Array, "experts width intermediate"]
    w13_bias: Float[Array, "experts 2 intermediate"] | None = None
    w2_bias: Float[Array, "experts width"] | None = None


class Latent(NamedTuple):
    """Projections around experts on a narrower width; the norm stands between the experts' sum and `up`."""

    down: Float[Array, "latent hidden"]
    up: Float[Array, "hidden latent"]
    norm: Float[Array, " latent"] | None = None


class MoEWeights(NamedTuple):
    """Weights of one layer; what a model lacks is None."""

    router: Float[Array, "experts hidden"]
    experts: Experts
    router_bias: Float[Array, " experts"] | None = None
    correction_bias: Float[Array, " experts"] | None = None
    latent: Latent | None = None
    shared: GatedMLP | None = None


@dataclass(frozen=True)
class Mixture:
    """What a mixture does besides its weights. `eps` is that of the latent norm."""

    router: Router
    activation: Activation
    eps: float = 1e-6


def route(x: Float[Array, "rows hidden"], weights: MoEWeights, router: Router) -> Routing:
    """The router's product, in float32, and its choice."""
    logits = jnp.einsum("rh,eh->re", x, weights.router.astype(x.dtype), preferred_element_type=jnp.float32)
    if weights.router_bias is not None:
        logits = logits + weights.router_bias.astype(jnp.float32)[None, :]
    return router(logits, weights.correction_bias)


def to_latent(x: Float[Array, "rows hidden"], latent: Latent | None) -> Float[Array, "rows width"]:
    """Rows on the width that the experts act on."""
    return x if latent is None else linear(x, latent.down)


def from_latent(y: Float[Array, "rows width"], latent: Latent | None, eps: float) -> Float[Array, "rows hidden"]:
    """The experts' whole sum, normed and brought back to the hidden width."""
    if latent is None:
        return y
    if latent.norm is not None:
        y = rms_norm(y, latent.norm, eps)
    return linear(y, latent.up)


def routed(
    x: Float[Array, "rows width"], routing: Routing, experts: Experts, activation: Activation
) -> Float[Array, "rows width"]:
    """Weighted sum of each row's experts. It copies the weights of every choice: for tiny sizes only."""
    chosen = routing.experts
    projected = jnp.einsum("rw,rkgiw->rkgi", x, experts.w13.astype(x.dtype)[chosen], preferred_element_type=jnp.float32)
    if experts.w13_bias is not None:
        projected = projected + experts.w13_bias[chosen].astype(jnp.float32)
    projected = projected.astype(x.dtype)
    inner = activation(projected[:, :, 0], projected[:, :, 1])
    out = jnp.einsum("rki,rkwi->rkw", inner, experts.w2.astype(x.dtype)[chosen], preferred_element_type=jnp.float32)
    if experts.w2_bias is not None:
        out = out + experts.w2_bias[chosen].astype(jnp.float32)
    return jnp.einsum("rk,rkw->rw", routing.weights, out).astype(x.dtype)


def moe(x: Float[Array, "rows hidden"], weights: MoEWeights, mixture: Mixture) -> Float[Array, "rows hidden"]:
    """Routed experts, on a latent width where there is one, plus the shared expert."""
    routing = route(x, weights, mixture.router)
    summed = routed(to_latent(x, weights.latent), routing, weights.experts, mixture.activation)
    out = from_latent(summed, weights.latent, mixture.eps)
    return out if weights.shared is None else out + gated_mlp(x, weights.shared, mixture.activation)
