"""One pass over the states of a step: a Pallas kernel with the Triton backend, which reads and writes each state once.

A program has one head of one request, whose columns (value channels) never meet: it takes them a block at a time. It
loads a block of the state, advances it over the tokens of the ring that were accepted, stores it, and goes on in
registers over the new tokens, whose writes go to the ring. At the end the new keys and decays take the place of those
that all blocks have read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from hw.errors import MeshwrightError
from layouts.collectives import vary_alike
from layouts.kda.chunked import Writes
from layouts.kda.inputs import READ, Inputs, Result, inputs_of
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing

_COLUMNS: Final = 64  # of a block
_WARPS: Final = 2  # of a program
_PARTS: Final = 4  # into which keys are split, to be multiplied and added in one instruction
_MOST: Final = 256  # keys that the registers of a program have room for
_FMA: Final = "fma.rn.f32 $0, $1, $2, $3;"  # the backend makes two instructions of x * y + z
Block = Float[Array, "dim columns"]
Keys = Float[Array, " dim"]
Columns = Float[Array, " columns"]
_FusedForm = Callable[[Array, Array, Array], Array]  # x y + z


def advance_and_solve(
    tokens: Tokens,
    recurrent: Float[Array, "slots heads dim dim"],
    writes: Writes,
    standing: Standing,
    *,
    interpret: bool = False,
) -> Result:
    """Outputs of the new tokens, the states before them, and the ring with them.

    States and ring are updated in place where the caller gives them up. `interpret`: as JAX operations, on any device.
    Raises MeshwrightError for widths that the kernel does not have.
    """
    requests, _, heads, dim = tokens.k.shape
    if dim & (dim - 1) or not (_PARTS <= dim <= _MOST):
        raise MeshwrightError(
            f"heads of {dim} channels: the kernel has powers of two from {_PARTS} to {_MOST}; use another form"
        )
    operands = vary_alike(*inputs_of(tokens, recurrent, writes, standing))
    described = partial(jax.ShapeDtypeStruct, manual_axis_type=jax.typeof(operands[0]).manual_axis_type)
    kept = operands[READ:]
    launch = pl.pallas_call(
        partial(_program, interpret=interpret),
        grid=(heads, requests),
        out_shape=(described(tokens.q.shape, jnp.float32), *(described(x.shape, x.dtype) for x in kept)),
        input_output_aliases={READ + i: 1 + i for i in range(len(kept))},
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="kda_step",
    )
    output, recurrent, keys, deltas, decay = launch(*operands)
    return output, recurrent, Writes(keys, deltas, decay)


class _Token(NamedTuple):
    """What a new token brings: for each key, for each column, and for its head."""

    q: Keys
    k: Keys
    decay: Keys
    v: Columns
    beta: Array


class _Here(NamedTuple):
    """What a program is about."""

    head: Array
    request: Array
    slot: Array


class _Kept(NamedTuple):
    """References of its outputs."""

    output: Any
    recurrent: Any
    keys: Any
    deltas: Any
    decay: Any


def _program(*refs: Any, interpret: bool) -> None:
    """A head of a request, a block of columns after another."""
    reads, kept = Inputs(*refs[: len(Inputs._fields)]), _Kept(*refs[len(Inputs._fields) :])
    head, request = pl.program_id(0), pl.program_id(1)
    here, dim = _Here(head, request, reads.slots[request]), reads.k.shape[-1]
    width, fma = min(_COLUMNS, dim), _multiply_add if interpret else _fused
    for start in range(0, dim, width):
        _through_tokens(reads, kept, here, pl.ds(start, width), fma)
    if not interpret:
        triton.debug_barrier()  # every thread has read the ring
    for token in range(reads.k.shape[1]):
        kept.keys[here.slot, token, head] = reads.k[request, token, head]
        kept.decay[here.slot, token, head] = jnp.exp(reads.log_decay[request, token, head])


def _through_tokens(reads: Inputs, kept: _Kept, here: _Here, columns: Any, fma: _FusedForm) -> None:
    """A block of columns through all tokens. What a token brings is on its way while the one before is multiplied."""
    head, request, slot = here
    ring, (count, dim) = reads.keys.shape[1], reads.k.shape[1::2]

    def written_at(token: Array | int) -> tuple[Keys, Keys, Columns]:
        at = (slot, token, head)
        return reads.decay[*at], reads.keys[*at], reads.deltas[*at, columns]

    def new_at(token: Array | int) -> _Token:
        at = (request, token, head)
        q, k, decay = reads.q[*at], reads.k[*at], jnp.exp(reads.log_decay[*at])
        return _Token(q, k, decay, reads.v[*at, columns], reads.beta[*at])

    def accepted(token: Array, carried: tuple[Block, Any]) -> tuple[Block, Any]:
        state, (decay, key, delta) = carried
        behind = written_at(jnp.minimum(token + 1, ring - 1))
        return _written(state * _down(decay, state.shape), key, delta, fma), behind

    def scored(token: Array | int, state: Block, new: _Token, query: Keys, key: Keys) -> Columns:
        """Its delta; `query` and `key` as they meet the state."""
        delta = new.beta * (new.v - _product(key, state, fma))
        read = _product(query, state, fma)
        kept.output[request, token, head, columns] = read + (new.q * new.k).sum() * delta
        kept.deltas[slot, token, head, columns] = delta
        return delta

    def solved(token: Array, carried: tuple[Block, _Token]) -> tuple[Block, _Token]:
        state, new = carried
        behind = new_at(token + 1)
        state = state * _down(new.decay, state.shape)
        return _written(state, new.k, scored(token, state, new, new.q, new.k), fma), behind

    state = lax.cond(
        reads.empty[request] != 0,
        lambda: jnp.zeros((dim, columns.size), jnp.float32),
        lambda: reads.recurrent[slot, head, :, columns].astype(jnp.float32),
    )
    first, oldest = new_at(0), written_at(0)
    state, _ = lax.fori_loop(0, reads.due[request], accepted, (state, oldest))

    @pl.when(slot > 0)
    def store() -> None:
        kept.recurrent[slot, head, :, columns] = state.astype(kept.recurrent.dtype)

    state, last = lax.fori_loop(0, count - 1, solved, (state, first))
    scored(count - 1, state, last, last.q * last.decay, last.k * last.decay)


def _written(state: Block, key: Keys, delta: Columns, fma: _FusedForm) -> Block:
    """The state with a delta for a key."""
    return fma(_down(key, state.shape), jnp.broadcast_to(delta[None, :], state.shape), state)


def _product(vector: Keys, block: Block, fma: _FusedForm) -> Columns:
    """The sum over keys of a vector with each column: part by part, then over what is left."""
    sizes = [len(vector) // _PARTS] * _PARTS
    (first, tile), *others = zip(*(lax.split(x, sizes) for x in (_down(vector, block.shape), block)), strict=True)
    total = first * tile
    for part, tile in others:
        total = fma(part, tile, total)
    return total.sum(axis=0)


def _down(vector: Keys, shape: tuple[int, ...]) -> Block:
    return jnp.broadcast_to(vector[:, None], shape)


def _fused(x: Array, y: Array, z: Array) -> Array:
    """x y + z."""
    like = [jax.ShapeDtypeStruct(z.shape, z.dtype)]
    (found,) = triton.elementwise_inline_asm(
        _FMA, args=[x, y, z], constraints="=f,f,f,f", pack=1, result_shape_dtypes=like
    )
    return found


def _multiply_add(x: Array, y: Array, z: Array) -> Array:
    return x * y + z
