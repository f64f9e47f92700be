"""The delta rule over a chunk of tokens at once: matrix products alone, equal to the recurrence.

With D(j, i) the decay of tokens j+1 to i, the exponential of their summed log_decay, and D(i) that of tokens 1 to i,
the writes of a chunk that starts at state S solve
    delta_i = beta_i (v_i - (k_i D(i)) S - sum_{j<i} [k_i . (k_j D(j, i))] delta_j),
the outputs are (q_i D(i)) S + sum_{j<=i} [q_i . (k_j D(j, i))] delta_j, and after n tokens the state is
    diag(D(n)) S + sum_{j<=n} (k_j D(j, n)) delta_j.
Every exponent is a sum of values <= 0: no decay, however strong, overflows. It is never the difference of two sums from
the chunk's start, which would lose the digits of a weak decay behind strong ones.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hw.errors import MeshwrightError
from layouts.kda.reference import Form, State, Tokens, Weights, finish, precise, prepare, window_after

CHUNK = 64
BLOCK = 16  # pairs of tokens are decayed one by one inside a block only, where they need memory of block^2 x dim


class Writes(eqx.Module):
    """What tokens do to a state, float32: decay it (each key by a factor in [0, 1]), and add key times delta."""

    keys: Float[Array, "requests tokens heads dim"]
    deltas: Float[Array, "requests tokens heads dim"]
    decay: Float[Array, "requests tokens heads dim"]


def solve(
    tokens: Tokens, recurrent: Float[Array, "requests heads dim dim"], block: int
) -> tuple[Float[Array, "requests tokens heads dim"], Writes]:
    """Outputs of a chunk, and its writes. The number of tokens is a multiple of `block`. The state is read once."""
    from_start = jnp.exp(jnp.cumsum(tokens.log_decay, axis=1))
    rows = jnp.stack([tokens.q, tokens.k])
    reads, seen = precise("pbtnk,bnkv->pbtnv", rows * from_start[None], recurrent)
    among_queries, among_keys = decayed_products(rows, tokens.k, tokens.log_decay, block)
    matrix = jnp.moveaxis(tokens.beta, 1, 2)[..., None] * among_keys
    wanted = tokens.beta[..., None] * (tokens.v - seen)
    deltas = precise("bnij,bjnv->binv", unit_lower_inverse(matrix), wanted)
    writes = Writes(tokens.k, deltas, jnp.exp(tokens.log_decay))
    return reads + precise("bnij,bjnv->binv", among_queries, deltas), writes


def unit_lower_inverse(matrix: Float[Array, "*batch tokens tokens"]) -> Float[Array, "*batch tokens tokens"]:
    """Inverse of I + what `matrix` has below its diagonal: inverses of neighbouring diagonal blocks are joined until
    one is left, [[A, 0], [B, D]] having -D^-1 B A^-1 in its corner.

    Not JAX's triangular_solve: on the CPU it waits, inside a thread of the pool that all simulated devices share, for
    other threads of that pool, and 16 devices that do so at once wait for ever (jaxlib 0.10.2).
    """
    tokens = matrix.shape[-1]
    index = jnp.arange(tokens)
    inverse = jnp.broadcast_to(jnp.eye(tokens, dtype=matrix.dtype), matrix.shape)
    for size in (2**level for level in range((tokens - 1).bit_length())):
        row, column = index[:, None] // size, index[None, :] // size
        corner = jnp.where((row % 2 == 1) & (column == row - 1), 1.0, 0.0).astype(matrix.dtype)
        joined = precise("...ij,...jk->...ik", inverse, matrix * jnp.broadcast_to(corner, matrix.shape))
        inverse = inverse - precise("...ij,...jk->...ik", joined, inverse)
    return inverse


def decayed_products(
    rows: Float[Array, "2 requests tokens heads dim"],
    keys: Float[Array, "requests tokens heads dim"],
    log_decay: Float[Array, "requests tokens heads dim"],
    block: int,
) -> Float[Array, "2 requests heads tokens tokens"]:
    """rows_i . (keys_j D(j, i)) for j <= i, zero elsewhere, of two kinds of rows.

    Pairs in one block are decayed as they are. For a block's rows and all earlier keys the decay is a product of one a
    row, from the block's start, and one a key, up to there, which leaves a matrix product.
    """
    requests, tokens, heads, dim = keys.shape
    blocks = tokens // block
    near, steps = (x.reshape(requests, blocks, block, heads, dim) for x in (keys, log_decay))
    rows = rows.reshape(2, *near.shape)
    inside = precise("pbsind,bsjnd,bsijnd->pbnsij", rows, near, jnp.exp(between(steps)))
    if blocks == 1:
        return inside[:, :, :, 0]
    whole = jnp.pad(between(steps.sum(axis=2)), ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)), constant_values=-jnp.inf)
    to_start = whole[:, :-1, :, None] + later(steps, axis=2)[:, None]
    far = jnp.exp(to_start).reshape(requests, blocks, tokens, heads, dim) * keys[:, None]
    before = precise("pbsind,bsjnd->pbnsij", rows * jnp.exp(jnp.cumsum(steps, axis=2))[None], far)
    own = jnp.eye(blocks, dtype=inside.dtype)[None, None, None, :, None, :, None]
    diagonal = (inside[..., None, :] * own).reshape(before.shape)
    return (before + diagonal).reshape(2, requests, heads, tokens, tokens)


def between(steps: Float[Array, "*batch tokens heads dim"]) -> Float[Array, "*batch tokens tokens heads dim"]:
    """Entry i, j: the sum of steps j+1 to i, and -inf for j > i."""
    count = steps.shape[-3]
    index = jnp.arange(count)
    shape = (*(1,) * (steps.ndim - 3), count, count, 1, 1)
    above = (index[:, None] > index[None, :]).reshape(shape)
    sums = jnp.cumsum(jnp.where(above, steps[..., :, None, :, :], 0.0), axis=-4)
    return jnp.where((index[:, None] >= index[None, :]).reshape(shape), sums, -jnp.inf)


def later(steps: Array, axis: int) -> Array:
    """The sum of all later steps, for each."""
    shifted = jnp.roll(steps, -1, axis).at[(slice(None),) * axis + (-1,)].set(0)
    return jax.lax.cumsum(shifted, axis=axis, reverse=True)


def advance(
    recurrent: Float[Array, "requests heads dim dim"], writes: Writes, count: Int[Array, " requests"]
) -> Float[Array, "requests heads dim dim"]:
    """The state after the first `count` (0 to all) tokens of each request; with none it is the state given."""
    happened = jnp.arange(writes.keys.shape[1], dtype=count.dtype)[None, :] < count[:, None]
    happened = happened[:, :, None, None]
    decay = jnp.where(happened, writes.decay, 1.0)
    from_each = jax.lax.cumprod(decay, axis=1, reverse=True)
    behind = jnp.roll(from_each, -1, axis=1).at[:, -1].set(1.0)
    keys = jnp.where(happened, writes.keys * behind, 0.0)
    return recurrent * from_each[:, 0, ..., None] + precise("btnk,btnv->bnkv", keys, writes.deltas)


def chunks(
    tokens: Tokens,
    recurrent: Float[Array, "requests heads dim dim"],
    lengths: Int[Array, " requests"],
    chunk: int = CHUNK,
) -> tuple[Float[Array, "requests tokens heads dim"], Float[Array, "requests heads dim dim"]]:
    """Outputs and last state of prompts of `lengths` tokens, chunk by chunk; outputs beyond a length mean nothing.

    `chunk` is a multiple of BLOCK, or smaller; anything else is a MeshwrightError.
    """
    if chunk < 1 or chunk % min(BLOCK, chunk):
        raise MeshwrightError(
            f"KDA: a chunk of {chunk} tokens is not a multiple of {BLOCK}; choose {CHUNK}, or below {BLOCK}"
        )
    count = tokens.beta.shape[1]
    number = -(-count // chunk)
    padded = jax.tree.map(lambda x: _pad(x, number * chunk - count), tokens)
    split = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, number, chunk, *x.shape[2:]), 1, 0), padded)
    starts = chunk * jnp.arange(number, dtype=lengths.dtype)

    def step(state: Array, part: tuple[Tokens, Array]) -> tuple[Array, Array]:
        here, start = part
        output, writes = solve(here, state, min(BLOCK, chunk))
        return advance(state, writes, jnp.clip(lengths - start, 0, chunk)), output

    last, outputs = jax.lax.scan(step, recurrent, (split, starts))
    joined = jnp.moveaxis(outputs, 0, 1).reshape(-1, number * chunk, *outputs.shape[3:])
    return joined[:, :count], last


def _pad(x: Array, missing: int) -> Array:
    return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))


def prefill(
    x: Float[Array, "requests tokens hidden"],
    state: State,
    lengths: Int[Array, " requests"],
    weights: Weights,
    form: Form,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "requests tokens hidden"], State]:
    """A KDA layer over the next `lengths` tokens of each prompt, which goes on from `state` (zeros at its start)."""
    tokens, inputs = prepare(x, state.window, weights, form)
    output, recurrent = chunks(tokens, state.recurrent, lengths, chunk)
    return finish(output, x, weights, form), State(recurrent, window_after(inputs, lengths, state.window.shape[1]))
