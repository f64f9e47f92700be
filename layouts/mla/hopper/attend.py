"""The kernel from end to end: a schedule, a launch, and the pieces of requests that were cut made one."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layouts.collectives import vary_alike
from layouts.mla.hopper.block import Sizes
from layouts.mla.hopper.kernel import LATENT, PACKED, ROPE, launch, require_supported
from layouts.mla.hopper.merge import merge
from layouts.mla.hopper.schedule import gang_count, schedule
from layouts.mla.shares import ROWS


def attend_runs(
    query: Float[Array, "requests verify heads width"],
    pool: Float[Array, "pool_rows width"],
    starts: Int[Array, "requests runs"],
    limits: Int[Array, "requests verify"],
    *,
    scale: float,
    run: int,
    multiprocessors: int,
) -> tuple[Float[Array, "requests verify heads latent"], Float[Array, "requests verify heads"]]:
    """Output (dtype of the query) and float32 log-sum-exp, base e, of each row; zero and -inf where it sees nothing.

    `starts` are the pool rows, multiples of 8, of each run of `run` tokens of a request (8, 16, 32 or 64); `limits` say
    how many of them each row sees. Runs behind the last seen, and pool rows that no row sees, may be anything.
    """
    requests, verify, heads, width = query.shape
    require_supported(width - ROPE, ROPE, pool.dtype, run)
    gangs = gang_count(-(-verify * heads // ROWS), multiprocessors)
    packed = pool.dtype == PACKED
    sizes = Sizes(requests, verify, heads, LATENT, ROPE, gangs, run, packed, scale)
    limits = limits.astype(jnp.int32)
    begins = schedule(limits)
    rows = verify * heads
    flat = query.reshape(requests, rows, width).astype(jnp.float16 if packed else pool.dtype)
    flat = jnp.pad(flat, ((0, 0), (0, sizes.rows - rows), (0, 0))).reshape(-1, width)
    flat = jnp.pad(flat, ((0, max(ROWS - len(flat), 0)), (0, 0)))
    starts = jnp.pad(starts.astype(jnp.int32), ((0, 0), (0, -starts.shape[1] % sizes.runs)))
    results = launch(sizes, flat, pool, starts, limits, begins, query.dtype)
    output, lse = merge(*vary_alike(*results, begins), gangs=sizes.gangs)
    real = requests * sizes.rows
    output = output[:real].reshape(requests, sizes.rows, LATENT)[:, :rows]
    lse = lse[:real].reshape(requests, sizes.rows)[:, :rows]
    return output.reshape(requests, verify, heads, LATENT), lse.reshape(requests, verify, heads)
