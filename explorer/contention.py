"""What two streams take from each other while both run: kernels and exchanges beside the copies of a weight gather.

A gather is issued at the start of a position and runs until it is done, so what stands first in the position runs
beside it and what stands behind does not. An op that would take t alone takes (1 + c) t beside copies: in a window of W
seconds from the start of its position, of which the ops before it use up b, it is beside them for
min(max(W - b, 0), (1 + c) t) and longer by c / (1 + c) of that. The copies are longer in the same way while exchanges
use the links. Windows are those of copies that run alone: what they lengthen each other's overlap by is left out.
"""

from typing import Final, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

AHEAD: Final = 3  # positions that a gather may be issued ahead of its own


class Order(eqx.Module):
    """In which order the main stream runs the ops of each block, which of them send over the links (1), and at which
    positions of the step the block stands."""

    ops: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    sends: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    positions: tuple[tuple[int, ...], ...] = eqx.field(static=True)


class Contended(NamedTuple):
    """Work and gather of each position with what contention adds, and what it adds to each op of the main stream in
    the whole step."""

    main: Float[Array, " positions"]
    gather: Float[Array, " positions"]
    slowed: Float[Array, " ops"]


def contended(
    order: Order,
    seconds: Float[Array, " ops"],
    contention: Float[Array, " ops"],
    copies: Float[Array, ""],
    main: Float[Array, " positions"],
    gather: Float[Array, " positions"],
    gathers: Float[Array, " positions"],
) -> Contended:
    """Positions as they take beside each other's streams, from what ops (`seconds`) and positions take alone.

    `contention` of the main stream's ops, and `copies` of the gather's, are fractions of their time. `gathers` is 1 at
    positions that gather weights.
    """
    window = windows(main, gather, gathers)
    slowed, longer, sent_beside = [], [], []
    for block in zip(order.ops, order.sends, order.positions, strict=True):
        ops, sends, positions = map(np.array, block)
        beside = seconds[ops] * (1.0 + contention[ops])
        before = jnp.cumsum(beside) - beside
        within = jnp.clip(window[positions][:, None] - before[None], 0.0, beside[None])
        part = contention[ops] / (1.0 + contention[ops])
        slowed.append(within.sum(axis=0) * part)
        longer.append((within * part[None]).sum(axis=1))
        sent_beside.append((within * sends[None]).sum(axis=1))
    in_step = np.argsort(np.concatenate(order.positions))
    longer, sent_beside = (jnp.concatenate(column)[in_step] for column in (longer, sent_beside))
    slower_copies = since_issue(sent_beside, gathers) * copies / (1.0 + copies)
    by_op = jnp.zeros_like(seconds).at[np.concatenate(order.ops)].set(jnp.concatenate(slowed))
    return Contended(main + longer, gather + gathers * slower_copies, by_op)


def since_issue(column: Float[Array, " positions"], gathers: Float[Array, " positions"]) -> Float[Array, " positions"]:
    """The sum over the positions from which a position's gather is issued up to the one before it."""
    total = jnp.zeros_like(column)
    for back in range(AHEAD, 0, -1):
        total = shifted(column, back) + (1.0 - shifted(gathers, back)) * total
    return total


def windows(
    main: Float[Array, " positions"], gather: Float[Array, " positions"], gathers: Float[Array, " positions"]
) -> Float[Array, " positions"]:
    """For how long from its start a position runs beside the gather of the next one that has weights.

    At the gather's issue that is all of it, at positions behind that what the positions between have left.
    """
    none = 1.0 - gathers
    one, two = shifted(main, 1), shifted(main, 1) + shifted(none, 1) * shifted(main, 2)
    nearest = jnp.maximum(shifted(gather, -1) - none * two, 0.0)
    second = jnp.maximum(shifted(gather, -2) - none * one, 0.0)
    third = shifted(gather, -3)
    return nearest + shifted(none, -1) * (second + shifted(none, -2) * third)


def shifted(column: Float[Array, " positions"], back: int) -> Float[Array, " positions"]:
    """What the position `back` before each one has (behind it where negative); nothing beyond the ends."""
    nothing = jnp.zeros(abs(back), column.dtype)
    if back < 0:
        return jnp.concatenate([column[-back:], nothing])[-len(column) :]
    return jnp.concatenate([nothing, column[:-back]])[: len(column)]
