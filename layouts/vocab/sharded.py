"""Embedding, logits and greedy sampling with the vocabulary cut over `vocab_tp` ranks, in order.

Where that is wider than an attention group, the groups that share a vocabulary first bring their rows together; where
it is narrower, an attention group holds several copies, and each works out the same.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from layouts.collectives import all_gather, all_gather_same, axis_index, psum, vary
from layouts.mesh import Axes
from layouts.vocab import reference


def groups_axes(axes: Axes) -> tuple[str, ...]:
    """Mesh axes over which attention groups share one cut vocabulary; none where each has its own."""
    return tuple(name for name in axes["vocab_tp"] if name not in axes["attn_tp"])


def embed(table: Float[Array, "part hidden"], tokens: Int[Array, " rows"], axes: Axes) -> Float[Array, "rows hidden"]:
    """An attention group's tokens embedded: each rank looks up those that it holds, and the parts are summed."""
    every = all_gather(tokens, groups_axes(axes), 0)
    local = every - axis_index(axes["vocab_tp"]) * table.shape[0]
    held = (local >= 0) & (local < table.shape[0])
    parts = jnp.where(held[:, None], table[jnp.where(held, local, 0)], jnp.zeros((), table.dtype))
    return _own(psum(vary(parts, axes["vocab_tp"]), axes["vocab_tp"]), tokens.shape[0], axes)


def logits(
    hidden: Float[Array, "rows hidden"], head: Float[Array, "part hidden"], axes: Axes, vocab: int | None = None
) -> Float[Array, "shared_rows part"]:
    """A rank's part of the scores, in the dtype of `hidden` as engines gather them, for the rows of all groups that
    share its vocabulary.

    `vocab`: tokens that there are, where the head was padded to a multiple of vocab_tp; the others score -inf.
    """
    scores = reference.logits(all_gather(hidden, groups_axes(axes), 0), head).astype(hidden.dtype)
    if vocab is None:
        return scores
    token = axis_index(axes["vocab_tp"]) * head.shape[0] + jnp.arange(head.shape[0], dtype=jnp.int32)
    return jnp.where((token < vocab)[None, :], scores, -jnp.inf)


def whole_logits(part: Float[Array, "shared_rows part"], axes: Axes) -> Float[Array, "rows vocab"]:
    """Every score of an attention group's own rows, on each of its ranks: what sampling at large needs."""
    whole = all_gather_same(part, axes["vocab_tp"], 1)
    return _own(whole, part.shape[0] // _groups(axes), axes)


def greedy(part: Float[Array, "shared_rows part"], axes: Axes) -> Int[Array, " rows"]:
    """The best token of an attention group's own rows from the parts of the scores: one score and token a rank travel.

    Ranks hold ascending tokens and the first of equal ones is taken on each: ties go to the lowest token.
    """
    best = reference.greedy(part)
    score = jnp.take_along_axis(part, best[:, None], axis=1)[:, 0]
    token = best + axis_index(axes["vocab_tp"]) * part.shape[1]
    scores, tokens = (all_gather_same(x[None], axes["vocab_tp"], 0) for x in (score, token))
    winner = jnp.argmax(scores, axis=0)
    chosen = jnp.take_along_axis(tokens, winner[None], axis=0)[0]
    return _own(chosen, part.shape[0] // _groups(axes), axes)


def _groups(axes: Axes) -> int:
    return axes.size("vocab_tp") // axes.size("attn_tp") if groups_axes(axes) else 1


def _own(x: Array, rows: int, axes: Axes) -> Array:
    """The rows of this rank's attention group among those of the groups that share a vocabulary."""
    shared = groups_axes(axes)
    return lax.dynamic_slice_in_dim(x, axis_index(shared) * rows, rows) if shared else x
