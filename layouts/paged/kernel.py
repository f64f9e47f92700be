"""Attention of a few query rows over pages, cut into pieces: a Pallas kernel with the Triton backend.

A block has the rows of one KV head, as many query heads as share it times the tokens that a step verifies, and passes
over a piece of the tokens of a request. What no row sees is not loaded.
"""

from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from hw.errors import MeshwrightError
from layouts.collectives import vary_alike
from layouts.paged.block import Block, Entry, Tiling, attend
from layouts.paged.pages import Pages

_WORDS: Final = 2**31  # numbers of 32 bits with a sign reach as many values


class UnsupportedPoolError(MeshwrightError):
    """A pool that the kernel would address wrongly."""


class Parts(NamedTuple):
    """Output and log-sum-exp (base e) of each piece of each request; float32 where there are several."""

    output: Float[Array, "requests splits verify heads width"]
    lse: Float[Array, "requests splits verify heads"]


def attend_parts(
    query: Float[Array, "requests verify heads key"],
    pool: Float[Array, "pool_rows kv_heads entry"],
    pages: Pages,
    *,
    entry: Entry,
    scale: float,
    run: int,
    tiling: Tiling,
    interpret: bool = False,
) -> Parts:
    """Attention over `tiling.splits` pieces of the tokens of each request, which lie in runs of `run` tokens.

    A piece that a row sees nothing of is zero and -inf. What lies in tokens that no row sees, NaN included, does not
    matter. `interpret`: as JAX operations, on any device.
    """
    _require_addressed(pool)
    requests, verify, heads, _ = query.shape
    inputs = vary_alike(query, pool, *(x for x in pages if x is not None))
    described = partial(jax.ShapeDtypeStruct, manual_axis_type=jax.typeof(inputs[0]).manual_axis_type)
    shape = (requests, tiling.splits, verify, heads)

    def body(*refs: Any) -> None:
        bounds = refs if pages.lows is not None else (*refs[:4], None, *refs[4:])
        attend(Block(*bounds), entry, scale, run, tiling)

    launch = pl.pallas_call(
        body,
        # the first axis goes fastest: blocks of the same tokens run side by side, and share them in the cache
        grid=(-(-verify * heads // pool.shape[1] // tiling.rows), pool.shape[1], tiling.splits, requests),
        out_shape=(
            described((*shape, entry.width), jnp.float32 if tiling.splits > 1 else query.dtype),
            described(shape, jnp.float32),
        ),
        compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpret,
        name="paged_attention",
    )
    return Parts(*launch(*inputs))


def _require_addressed(pool: jax.Array) -> None:
    """The backend counts values in 32 bits up to 2^32 bytes, in 64 beyond: too few for values of one byte."""
    if pool.size > _WORDS and pool.nbytes <= 2 * _WORDS:
        raise UnsupportedPoolError(
            f"a pool of {pool.size} values of {pool.dtype.itemsize} byte: the kernel reads up to {_WORDS} or more than "
            f"{2 * _WORDS} of them; change the pages of the pool"
        )
