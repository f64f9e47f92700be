"""The delta rule over a chunk of tokens at once: matrix products and one triangular solve, equal to the recurrence.

With G_i the sum of log_decay up to token i, the writes of a chunk that starts at state S solve
    delta_i = beta_i (v_i - (k_i exp(G_i)) S - sum_{j<i} [k_i . (k_j exp(G_i - G_j))] delta_j),
the outputs are (q_i exp(G_i)) S + sum_{j<=i} [q_i . (k_j exp(G_i - G_j))] delta_j, and after n tokens the state is
    diag(exp(G_n)) S + sum_{j<=n} (k_j exp(G_n - G_j)) delta_j.
Every exponent is a later G minus an earlier one, hence <= 0: no decay, however strong, overflows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layouts.kda.reference import Form, State, Tokens, Weights, finish, precise, prepare, window_after

CHUNK = 64
BLOCK = 16  # pairs of tokens are decayed one by one inside a block only, where they need memory of block^2 x dim


class Writes(eqx.Module):
    """What the tokens of a chunk add to a state, float32: `decay` is G, summed from the chunk's first token."""

    keys: Float[Array, "requests tokens heads dim"]
    deltas: Float[Array, "requests tokens heads dim"]
    decay: Float[Array, "requests tokens heads dim"]


def solve(
    tokens: Tokens, recurrent: Float[Array, "requests heads dim dim"], block: int
) -> tuple[Float[Array, "requests tokens heads dim"], Writes]:
    """Outputs of a chunk, and its writes. The number of tokens is a multiple of `block`. The state is read once."""
    decay = jnp.cumsum(tokens.log_decay, axis=1)
    from_start = jnp.exp(decay)
    queries, seen = precise("pbtnk,bnkv->pbtnv", jnp.stack([tokens.q, tokens.k]) * from_start[None], recurrent)
    beta = tokens.beta[..., None]
    among_keys = jnp.tril(decayed_products(tokens.k, tokens.k, decay, block), -1)
    matrix = jnp.moveaxis(tokens.beta, 1, 2)[..., None] * among_keys
    wanted = jnp.moveaxis(beta * (tokens.v - seen), 1, 2)
    deltas = jax.lax.linalg.triangular_solve(matrix, wanted, left_side=True, lower=True, unit_diagonal=True)
    among = precise("bnij,bnjv->binv", decayed_products(tokens.q, tokens.k, decay, block), deltas)
    return queries + among, Writes(tokens.k, jnp.moveaxis(deltas, 2, 1), decay)


def decayed_products(
    rows: Float[Array, "requests tokens heads dim"],
    keys: Float[Array, "requests tokens heads dim"],
    decay: Float[Array, "requests tokens heads dim"],
    block: int,
) -> Float[Array, "requests heads tokens tokens"]:
    """rows_i . (keys_j exp(decay_i - decay_j)) for j <= i, zero elsewhere.

    Pairs in one block are decayed as they are. For a block's rows and all earlier keys the exponent is cut at the
    block's first token into two that are both <= 0, one a row and one a key, which leaves a matrix product.
    """
    requests, tokens, heads, dim = keys.shape
    blocks = tokens // block
    rows, near, by_block = (x.reshape(requests, blocks, block, heads, dim) for x in (rows, keys, decay))
    causal = jnp.tril(jnp.ones((block, block), bool))[None, None, :, :, None, None]
    between = jnp.exp(jnp.where(causal, by_block[:, :, :, None] - by_block[:, :, None], -jnp.inf))
    inside = precise("bsind,bsjnd,bsijnd->bnsij", rows, near, between)
    if blocks == 1:
        return inside[:, :, 0]
    first = by_block[:, :, :1]
    earlier = jnp.arange(tokens)[None, :] < block * jnp.arange(blocks)[:, None]
    to_first = jnp.where(earlier[None, :, :, None, None], first - decay[:, None], -jnp.inf)
    before = precise("bsind,bsjnd->bnsij", rows * jnp.exp(by_block - first), keys[:, None] * jnp.exp(to_first))
    own = jnp.eye(blocks, dtype=inside.dtype)[None, None, :, None, :, None]
    diagonal = (inside[:, :, :, :, None] * own).reshape(before.shape)
    return (before + diagonal).reshape(requests, heads, tokens, tokens)


def advance(
    recurrent: Float[Array, "requests heads dim dim"], writes: Writes, count: Int[Array, " requests"]
) -> Float[Array, "requests heads dim dim"]:
    """The state after the first `count` (0 to all) tokens of each request; with none it is the state given."""
    last = jnp.maximum(count - 1, 0)[:, None, None, None]
    total = jnp.where((count > 0)[:, None, None, None], jnp.take_along_axis(writes.decay, last, axis=1), 0.0)
    happened = jnp.arange(writes.decay.shape[1], dtype=count.dtype)[None, :] < count[:, None]
    weight = jnp.exp(jnp.where(happened[:, :, None, None], total - writes.decay, -jnp.inf))
    added = precise("btnk,btnv->bnkv", writes.keys * weight, writes.deltas)
    return recurrent * jnp.exp(total[:, 0])[..., None] + added


def chunks(
    tokens: Tokens,
    recurrent: Float[Array, "requests heads dim dim"],
    lengths: Int[Array, " requests"],
    chunk: int = CHUNK,
) -> tuple[Float[Array, "requests tokens heads dim"], Float[Array, "requests heads dim dim"]]:
    """Outputs and last state of prompts of `lengths` tokens, chunk by chunk; outputs beyond a length mean nothing.

    `chunk` is a multiple of BLOCK, or smaller.
    """
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
