"""One pass over the states of a step on Hopper: a Pallas kernel for Mosaic GPU, which reads and writes each state once.

A block has one head of one request. The copy engine brings its state, ring and new tokens into shared memory; a
warpgroup takes the state into registers, advances it over the tokens of the ring that were accepted, hands it back to
the copy engine, and goes on over the new tokens. Two blocks share a multiprocessor: states of one are on their way
while the other computes.

Columns (value channels) never meet, so each warp has its own, and no sum over keys leaves it.
"""

from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from hw.errors import MeshwrightError
from layouts.kda.chunked import Writes
from layouts.kda.inputs import READ, Inputs, Result, inputs_of
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from layouts.kernels import SHARED_BYTES
from layouts.mosaic import device_for_kernels, plgpu

_DIM: Final = 128
_KEPT_BACK: Final = 3072  # bytes of shared memory: 2,048 that JAX leaves for sums across warps, the rest for barriers
_ALIGNED: Final = 1024  # bytes, to multiples of which an array there is rounded up
_NEW: Final = ("q", "k", "v", "decay", "outputs", "deltas")  # of each new token in shared memory
_RING: Final = ("old_keys", "old_deltas", "old_decay")  # of each token of the ring
# Of each 16 keys and 32 columns of a warp a lane has 4 x 4: it loads 16 bytes of a row, and eight lanes 128 of it.
# A sum over keys is over 32 of a lane and four lanes.
_STATE: Final = plgpu.Layout.TILED(
    plgpu.Tiling(((16, _DIM), (16, 32), (4, 4))), warp_dims=(-5,), lane_dims=(-4, -3), vector_dim=-1
)
_BY_KEY, _BY_COLUMN = _STATE.reduce(1), _STATE.reduce(0)
_BY_THREAD: Final = plgpu.Layout.WG_STRIDED((_DIM,), 1)
Block = Float[Array, "dim dim"]


def advance_and_solve(
    tokens: Tokens,
    recurrent: Float[Array, "slots heads dim dim"],
    writes: Writes,
    standing: Standing,
    *,
    interpret: bool = False,
) -> Result:
    """Outputs of the new tokens, the states before them, and the ring with them.

    States and ring are updated in place where the caller gives them up; inside a `shard_map` that checks what varies,
    JAX refuses references to them. `interpret`: as JAX operations, on any device.
    Raises MeshwrightError for devices, widths, dtypes and rings that the kernel does not have.
    """
    if not interpret:
        device_for_kernels()
    requests, count, heads, dim = tokens.k.shape
    ring = writes.keys.shape[1]
    _require(dim, recurrent.dtype, count, ring)
    given = inputs_of(tokens, recurrent, writes, standing)
    kept = [jax.new_ref(x) for x in given[READ:]]
    launch = plgpu.kernel(
        lambda *refs, **shared: _block(Inputs(*refs[:-1]), refs[-1], _Shared(**shared)),
        out_type=jax.ShapeDtypeStruct(tokens.q.shape, jnp.float32),
        scratch_types=_scratch(count, ring),
        grid=(requests, heads),
        grid_names=("request", "head"),
        compiler_params=plgpu.CompilerParams(
            unsafe_no_auto_barriers=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup
        ),
        interpret=plgpu.InterpretGPUParams() if interpret else None,
        kernel_name="kda_step",
    )
    output = launch(*given[:READ], *kept)
    recurrent, keys, deltas, decay = (jax.freeze(x) for x in kept)
    return output, recurrent, Writes(keys, deltas, decay)


def _require(dim: int, dtype: Any, count: int, ring: int) -> None:
    if dim != _DIM or dtype != jnp.float32:
        raise MeshwrightError(
            f"states of {dim} channels in {jnp.dtype(dtype).name}: the kernel has {_DIM} in float32; use another form"
        )
    rows = len(_NEW) * [count] + len(_RING) * [ring]
    asked = 4 * dim * dim + sum(-(-4 * dim * number // _ALIGNED) * _ALIGNED for number in rows)
    if asked > SHARED_BYTES - _KEPT_BACK:
        raise MeshwrightError(
            f"{count} tokens beside a ring of {ring}: a block would want {asked:,} bytes of shared memory, of "
            f"{SHARED_BYTES:,}; use another form"
        )


def _scratch(count: int, ring: int) -> dict[str, Any]:
    """Shared memory and barriers of a block, by the names of `_Shared`."""

    def rows(number: int) -> Any:
        return plgpu.SMEM((number, _DIM), jnp.float32)

    return {
        "state": rows(_DIM),
        **{name: rows(count) for name in _NEW},
        **{name: rows(ring) for name in _RING},
        "state_came": plgpu.Barrier(),
        "tokens_came": plgpu.Barrier(num_arrivals=4 + len(_RING)),
    }


class _Shared(NamedTuple):
    """References of a block in shared memory, and barriers of what is on its way there."""

    state: Any
    q: Any
    k: Any
    v: Any
    decay: Any
    outputs: Any
    deltas: Any
    old_keys: Any
    old_deltas: Any
    old_decay: Any
    state_came: Any
    tokens_came: Any


def _block(memory: Inputs, output: Any, here: _Shared) -> None:
    """A head of a request. The state that it leaves is that before its new tokens: they may yet be refused."""
    request, head = lax.axis_index("request"), lax.axis_index("head")
    slot = memory.slots[request]
    _fetch(memory, here, request, head, slot)
    first = memory.beta[request, 0, head]
    plgpu.barrier_wait(here.tokens_came)
    for token in range(here.decay.shape[0]):  # each thread its own; the others see it when shared memory is committed
        here.decay[token] = jnp.exp(plgpu.load(here.decay.at[token], layout=_BY_THREAD))
    plgpu.barrier_wait(here.state_came)
    state = lax.cond(
        memory.empty[request] != 0,
        lambda: plgpu.layout_cast(jnp.full((_DIM, _DIM), 0, jnp.float32), _STATE),  # whatever the slot was left with
        lambda: plgpu.load(here.state, layout=_STATE),
    )
    state = lax.fori_loop(0, memory.due[request], partial(_accepted, here), state)
    here.state[...] = state
    plgpu.commit_smem()
    pl.when(slot > 0)(lambda: plgpu.copy_smem_to_gmem(here.state, memory.recurrent.at[slot, head]))

    def solved(token: Array, carried: tuple[Block, Array]) -> tuple[Block, Array]:
        state, beta = carried
        behind = memory.beta[request, jnp.minimum(token + 1, here.k.shape[0] - 1), head]
        return _solved(here, token, state, beta), behind

    lax.fori_loop(0, here.k.shape[0], solved, (state, first))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(here.outputs, output.at[request, :, head])
    pl.when(slot > 0)(lambda: _keep(memory, here, head, slot))
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _fetch(memory: Inputs, here: _Shared, request: Array, head: Array, slot: Array) -> None:
    """Set everything on its way; what is needed first goes first."""
    new = ((memory.q, here.q), (memory.k, here.k), (memory.v, here.v), (memory.log_decay, here.decay))
    ring = ((memory.keys, here.old_keys), (memory.deltas, here.old_deltas), (memory.decay, here.old_decay))
    for row, pairs in ((request, new), (slot, ring)):
        for source, target in pairs:
            plgpu.copy_gmem_to_smem(source.at[row, :, head], target, here.tokens_came)
    plgpu.copy_gmem_to_smem(memory.recurrent.at[slot, head], here.state, here.state_came)


def _keep(memory: Inputs, here: _Shared, head: Array, slot: Array) -> None:
    """The new tokens into the ring, all of which has been read."""
    tokens = pl.ds(0, here.k.shape[0])
    for source, target in ((here.k, memory.keys), (here.deltas, memory.deltas), (here.decay, memory.decay)):
        plgpu.copy_smem_to_gmem(source, target.at[slot, tokens, head])


def _accepted(here: _Shared, token: Array, state: Block) -> Block:
    """The state after a token of the ring."""
    decayed = state * _by_key(here.old_decay.at[token])
    return decayed + _by_key(here.old_keys.at[token]) * _down(_by_column(here.old_deltas.at[token]))


def _solved(here: _Shared, token: Array, state: Block, beta: Array) -> Block:
    """The state after a new token, whose delta and output are left in shared memory."""
    state = state * _by_key(here.decay.at[token])
    key = _by_key(here.k.at[token])
    delta = beta * (_by_column(here.v.at[token]) - (key * state).sum(axis=0))
    state = state + key * _down(delta)
    here.outputs[token] = (_by_key(here.q.at[token]) * state).sum(axis=0)
    here.deltas[token] = delta
    return state


def _by_key(row: Any) -> Block:
    """A value a key, for all columns."""
    return lax.broadcast_in_dim(plgpu.load(row, layout=_BY_KEY, optimized=False), (_DIM, _DIM), (0,))


def _by_column(row: Any) -> Float[Array, " dim"]:
    return plgpu.load(row, layout=_BY_COLUMN, optimized=False)


def _down(row: Float[Array, " dim"]) -> Block:
    """A value a column, for all keys."""
    return lax.broadcast_in_dim(row, (_DIM, _DIM), (1,))
