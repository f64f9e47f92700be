"""Which tiles of which request each block takes: as many each, whatever the lengths of the requests.

All requests lie one behind the other on a line, each with the tiles that it sees, at least one, behind `START` tiles
that stand for what a piece costs besides. The line is cut into equal shares. A share goes to a gang: as many blocks as
the query rows of a request need, which pass over the same tiles at the same time, so that these come from memory once.
A gang has at most two pieces that are not whole requests: one that began in an earlier gang and one that goes on.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from layouts.mla.shares import START, TILE, share_length


class Piece(NamedTuple):
    """`tiles` tiles of a request from `first` on; `whole` if that is all of it."""

    first: jax.Array
    tiles: jax.Array
    whole: jax.Array


def gang_count(groups: int, multiprocessors: int) -> int:
    """Gangs of `groups` blocks that run at once, where a multiprocessor runs one block."""
    return max(multiprocessors // groups, 1)


def schedule(limits: Int[Array, "requests verify"]) -> Int[Array, " requests+1"]:
    """Where each request, whose rows see `limits` tokens, begins on the line; the last is the line's end."""
    length = -(-jnp.maximum(limits.max(axis=1), 1) // TILE) + START
    # over a square: one small kernel, where a scan is several
    before = jnp.arange(len(limits))[None, :] < jnp.arange(len(limits) + 1)[:, None]
    return jnp.where(before, length[None, :], 0).sum(axis=1, dtype=jnp.int32)


def request_at(begins: Any, requests: int, position: Any) -> Any:
    """The request that a position on the line belongs to; the last one behind the end."""
    low, high = jnp.int32(0), jnp.int32(requests - 1)
    for _ in range((requests - 1).bit_length()):
        middle = (low + high) // 2
        behind = begins[middle + 1] <= position
        low, high = jnp.where(behind, jnp.minimum(middle + 1, requests - 1), low), jnp.where(behind, high, middle)
    return low


def share_of(begins: Any, requests: int, gangs: int) -> Any:
    """Length of the share of a gang."""
    length, each = begins[requests], begins[1]
    return share_length(length, each, each * requests == length, gangs, _quotient)


def _quotient(length: Any, divisor: Any) -> Any:
    return (length + (divisor - 1)) // divisor


def piece_of(begin: Any, end: Any, share_begin: Any, share_end: Any) -> Piece:
    """The part of a request from `begin` to `end` on the line that lies in a share; `tiles` is 0 or less if none."""
    tiles, origin = end - begin - START, begin + START
    first = jnp.maximum(share_begin - origin, 0)
    count = jnp.minimum(share_end - origin, tiles) - first
    return Piece(first, count, count == tiles)
