"""Rows through the experts that a rank holds, sorted by expert: two grouped GEMMs."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from layouts.dense.activation import Activation
from layouts.moe.reference import Experts

NOWHERE = -1  # expert of a row that this rank has nothing to compute for


def to_local(
    experts: Int[Array, "rows topk"], real: Bool[Array, " rows"], first: Int[Array, ""], held: int
) -> Int[Array, "rows topk"]:
    """Global expert numbers as those of a rank that holds `held` from `first` on; NOWHERE for all others.

    Padded rows are taken out after the map, as the engines do: a number taken out before it would be mapped to an
    expert again (serving rules, DP attention).
    """
    local = experts - first
    mine = (local >= 0) & (local < held)
    return jnp.where(real[:, None], jnp.where(mine, local, NOWHERE), NOWHERE)


def grouped(
    x: Float[Array, "rows width"],
    local: Int[Array, "rows topk"],
    experts: Experts,
    activation: Activation,
    with_bias: Bool[Array, ""],
) -> Float[Array, "rows topk width"]:
    """Output of each local choice of each row, float32; zero for a choice that is NOWHERE.

    Nothing is dropped: room is kept for the most choices that can be local. `with_bias` says whether this rank adds
    the bias of the second GEMM (one rank of those that share an expert does).
    """
    rows, topk = local.shape
    held = experts.w13.shape[0]
    room = rows * min(topk, held)
    group = jnp.where(local == NOWHERE, held, local).reshape(-1)
    order = jnp.argsort(group, stable=True)
    sizes = (group[:, None] == jnp.arange(held, dtype=group.dtype)[None, :]).sum(axis=0, dtype=jnp.int32)
    at = group[order[:room]]
    inside = (at < held)[:, None]
    at = jnp.minimum(at, held - 1)
    # what padding left in its rows must not reach a sum, NaN included
    sent = jnp.where(inside, x[order[:room] // topk], jnp.zeros((), x.dtype))
    inner = _first(sent, at, sizes, experts, activation)
    out = lax.ragged_dot(inner, experts.w2.astype(x.dtype).swapaxes(1, 2), sizes, preferred_element_type=jnp.float32)
    if experts.w2_bias is not None:
        out = out + jnp.where(with_bias, experts.w2_bias.astype(jnp.float32), 0.0)[at]
    out = jnp.where(inside, out, 0.0)
    # each choice finds its place in the sorted rows; those behind the room are NOWHERE
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return jnp.take(out, place, axis=0, mode="fill", fill_value=0).reshape(rows, topk, -1)


def _first(sent: Array, at: Array, sizes: Array, experts: Experts, activation: Activation) -> Array:
    """Gate and up projection in one grouped GEMM, and the activation."""
    held, _, intermediate, width = experts.w13.shape
    w13 = experts.w13.astype(sent.dtype).reshape(held, 2 * intermediate, width)
    projected = lax.ragged_dot(sent, w13.swapaxes(1, 2), sizes, preferred_element_type=jnp.float32)
    projected = projected.reshape(-1, 2, intermediate)
    if experts.w13_bias is not None:
        projected = projected + experts.w13_bias.astype(jnp.float32)[at]
    projected = projected.astype(sent.dtype)
    return activation(projected[:, 0], projected[:, 1])
