"""Attention of a decode or verify step over a cache: on one device over a whole one, on a mesh over a rank's share.

What an entry of the cache is, a latent or a pair of keys and values, only the attention given knows.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts.cache.batch import Batch, read, write
from layouts.collectives import all_gather, axis_index
from layouts.combine.partial import visible
from layouts.combine.sharded import combine
from layouts.mesh import Axes
from layouts.paged.pages import Pages

Part = tuple[Float[Array, "requests verify heads width"], Float[Array, "requests verify heads"]]
Attend = Callable[
    [
        Float[Array, "requests verify heads key"],
        Float[Array, "requests tokens *entry"],
        Bool[Array, "requests verify tokens"],
    ],
    Part,
]
AttendPages = Callable[[Float[Array, "requests verify heads key"], Float[Array, "pool_rows *entry"], Pages], Part]
# over what a rank of a number of ranks holds, from its pool
AttendPool = Callable[
    [Float[Array, "requests verify heads key"], Float[Array, "pool_rows *entry"], Batch, Int[Array, ""], int], Part
]


def attend_whole(
    attend: Attend,
    query: Float[Array, "requests*verify heads key"],
    new: Float[Array, "requests*verify *entry"],
    cache: Float[Array, "requests context *entry"],
    lengths: Int[Array, " requests"],
    window: int = 0,
) -> tuple[Float[Array, "requests*verify heads width"], Float[Array, "requests context *entry"]]:
    """Output of the new tokens, each seeing those before it, and the cache with them behind `lengths` earlier ones."""
    requests, context = cache.shape[:2]
    verify = len(query) // requests
    positions = lengths[:, None] + jnp.arange(verify, dtype=lengths.dtype)[None, :]
    cache = cache.at[jnp.arange(requests)[:, None], positions].set(new.reshape(requests, verify, *new.shape[1:]))
    tokens = jnp.broadcast_to(jnp.arange(context, dtype=lengths.dtype)[None, :], (requests, context))
    seen = visible(positions, tokens, window)
    output, _ = attend(query.reshape(requests, verify, *query.shape[1:]), cache, seen)
    return output.reshape(*query.shape[:2], -1), cache


def over_rows(attend: Attend, window: int = 0) -> AttendPool:
    """Attention over the tokens that a rank holds, read out of its pool one by one."""

    def of_pool(query: Array, pool: Array, batch: Batch, rank: Int[Array, ""], ranks: int) -> Part:
        verify = query.shape[1]
        held = batch.held(verify, rank, ranks, window)
        seen = visible(batch.positions(verify), held.positions, window) & held.real[:, None, :]
        return attend(query, read(pool, held.rows), seen)

    return of_pool


def over_pages(attend: AttendPages, run: int, window: int = 0) -> AttendPool:
    """Attention that finds the tokens in the pool itself, where `run` of a request lie together."""

    def of_pool(query: Array, pool: Array, batch: Batch, rank: Int[Array, ""], ranks: int) -> Part:
        return attend(query, pool, batch.pages(query.shape[1], rank, ranks, run, window))

    return of_pool


def attend_shared(
    attend: AttendPool,
    query: Float[Array, "requests*verify heads key"],
    new: Float[Array, "requests*verify *entry"],
    pool: Float[Array, "pool_rows *entry"],
    batch: Batch,
    axes: Axes,
    backend: str,
    *,
    gather: bool,
) -> tuple[Float[Array, "requests*verify own_heads width"], Float[Array, "pool_rows *entry"]]:
    """Output of this rank's heads over the tokens of its whole DCP group, and its pool with the new ones it owns.

    `gather`: queries are those of the rank's own heads, and are gathered over the group first.
    """
    requests, verify = len(batch.lengths), len(query) // len(batch.lengths)
    rank, ranks = axis_index(axes["dcp"]), axes.size("dcp")
    pool = write(pool, batch.new_rows(verify, rank, ranks), new)
    if gather:
        query = all_gather(query, axes["dcp"], 1)
    rows, heads = query.shape[:2]
    part, lse = attend(query.reshape(requests, verify, heads, -1), pool, batch, rank, ranks)
    return combine(part.reshape(rows, heads, -1), lse.reshape(rows, heads), axes["dcp"], backend), pool
