"""Addresses of a step on the device: from the request table to rows of one rank's pool.

The rules of `layouts.serving.owner`, traced: logical slots go round the ranks in runs of `interleave` (1: token by
token; the page size: page by page). A virtual page starts at a multiple of ranks x page slots, so that a token's
position gives its owner as its slot does. Row 0 of every pool stands for none: for what a rank does not own it writes
nothing, and slot 0 is never read.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from layouts.paged.pages import Pages
from layouts.rows import PADDING, written

Rank = Int[Array, ""] | int


class Held(NamedTuple):
    """Tokens of each request that a rank holds: their row in its pool, their position, and whether there is one."""

    rows: Int[Array, "requests tokens"]
    positions: Int[Array, "requests tokens"]
    real: Bool[Array, "requests tokens"]


class Batch(eqx.Module):
    """The requests of one step: their lines of the request table, and the tokens that each had cached before it.

    An idle request has a line of zeros.
    """

    slots: Int[Array, "requests context"]
    lengths: Int[Array, " requests"]
    interleave: int = eqx.field(static=True, default=1)

    def positions(self, verify: int) -> Int[Array, "requests verify"]:
        """Positions of the tokens that the step brings."""
        return self.lengths[:, None] + jnp.arange(verify, dtype=self.lengths.dtype)[None, :]

    def new_rows(self, verify: int, rank: Rank, ranks: int) -> Int[Array, "requests verify"]:
        """Where a rank writes them; row 0 for those of others and those past the table."""
        return local_row(self._slots_at(self.positions(verify)), rank, ranks, self.interleave)

    def held(self, verify: int, rank: Rank, ranks: int, window: int = 0) -> Held:
        """What a rank reads: its share of every token up to the new ones, or of those that a window leaves visible."""
        context = self.slots.shape[1]
        span = min(window + verify - 1, context) if window else context
        start = jnp.maximum(self.lengths - (window - 1), 0) if window else jnp.zeros_like(self.lengths)
        nth = jnp.arange(most_held(span, ranks, self.interleave), dtype=start.dtype)[None, :]
        nth = self._before(start, rank, ranks)[:, None] + nth
        positions = _position(nth, rank, ranks, self.interleave)
        slots = self._slots_at(positions)
        real = (slots > 0) & (positions < (self.lengths + verify)[:, None])
        return Held(local_row(slots, rank, ranks, self.interleave), positions, real)

    def pages(self, verify: int, rank: Rank, ranks: int, run: int, window: int = 0) -> Pages:
        """The same by runs of `run` tokens that lie together, which the page of the pool must be a multiple of."""
        context = self.slots.shape[1]
        first = jnp.maximum(self.lengths - (window - 1), 0) if window else jnp.zeros_like(self.lengths)
        span = min(window + verify - 1, context) if window else context
        begin = self._before(first, rank, ranks) // run * run
        # a window may begin within a run, and so touch one more
        runs = -(-most_held(span, ranks, self.interleave) // run) + (window > 0)
        nth = begin[:, None] + jnp.arange(runs, dtype=begin.dtype)[None, :] * run
        starts = local_row(self._slots_at(_position(nth, rank, ranks, self.interleave)), rank, ranks, self.interleave)
        seen = self.positions(verify) + 1
        live = self.slots[:, :1] > 0
        limits = self._before(jnp.minimum(seen, context), rank, ranks) - begin[:, None]
        lows = self._before(jnp.maximum(seen - window, 0), rank, ranks) - begin[:, None] if window else None
        return Pages(starts, jnp.where(live, limits, 0), lows)

    def _before(self, positions: jax.Array, rank: Rank, ranks: int) -> jax.Array:
        """How many tokens a rank holds of those before a position."""
        cycle = ranks * self.interleave
        within = jnp.clip(positions % cycle - rank * self.interleave, 0, self.interleave)
        return positions // cycle * self.interleave + within

    def _slots_at(self, positions: jax.Array) -> jax.Array:
        return jnp.take_along_axis(self.slots, positions, axis=1, mode="fill", fill_value=0)


def local_row(slots: Int[Array, "*dims"], rank: Rank, ranks: int, interleave: int = 1) -> Int[Array, "*dims"]:
    """Row of each logical slot in the pool of `rank`; 0 for slots of others."""
    own = slots // interleave % ranks == rank
    return jnp.where(own & (slots > 0), slots // (ranks * interleave) * interleave + slots % interleave, PADDING)


def most_held(span: int, ranks: int, interleave: int = 1) -> int:
    """Most tokens that any rank can hold of `span` neighbouring positions, wherever they start."""
    cycle = ranks * interleave
    return span // cycle * interleave + min(span % cycle, interleave)


def write(pool: Array, rows: Int[Array, "requests verify"], values: Array) -> Array:
    """The pool with one value a token written, cast to what the pool stores. `values` is (requests x verify, ...)."""
    return written(pool, rows.reshape(-1), values)


def read(pool: Array, rows: Int[Array, "requests tokens"]) -> Array:
    """(requests, tokens, ...) of the pool, one row a token."""
    return pool[rows]


def _position(nth: Int[Array, "*dims"], rank: Rank, ranks: int, interleave: int) -> Int[Array, "*dims"]:
    """Position of the nth token that a rank holds of a request."""
    return nth // interleave * (ranks * interleave) + rank * interleave + nth % interleave
