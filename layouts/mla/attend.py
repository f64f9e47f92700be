"""Absorbed attention over latents that lie in pages of a pool: the fastest form that the device at hand can run.

Forms are tried in order, and each failure is kept beside the choice, so that a slow form is never taken silently.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hw.errors import MeshwrightError
from layouts.combine.partial import attend
from layouts.mla.hopper import attend_parts, merge, require_supported, split_count

RUN: Final = 64  # tokens of a request that lie together in the pool
_BLOCK_ROWS: Final = 64  # query rows of a block of the kernel
_CAPABILITY: Final = "9.0"
_OLDEST_JAX: Final = (0, 11)  # Mosaic GPU before it has other signatures and no layout inference by default

Result = tuple[Float[Array, "requests verify heads latent"], Float[Array, "requests verify heads"]]


class NoFormError(MeshwrightError):
    """No form of the attention can run; the message has the error of each."""


class Pages(NamedTuple):
    """Where the latents of each request lie, and how many of them each of its rows sees.

    `starts` are the pool rows, multiples of 8, of its runs of 64 tokens; those behind the last seen may be any row.
    """

    starts: Int[Array, "requests runs"]
    limits: Int[Array, "requests verify"]


class Choice(NamedTuple):
    """The form that runs, and why those before it do not, a line each."""

    form: str
    errors: tuple[str, ...]


def attend_pages(
    query: Float[Array, "requests verify heads kv_values"],
    pool: Float[Array, "pool_rows kv_values"],
    pages: Pages,
    *,
    scale: float,
    latent: int,
    form: str,
) -> Result:
    """Output (dtype of the query) and float32 log-sum-exp, base e, of each row; zero and -inf where it sees nothing.

    Values are the first `latent` of the keys. `form` is one of `FORMS`, as `choose` gives it. Pool rows that no row
    sees may hold anything.
    """
    return FORMS[form](query, pool, pages, scale, latent)


def choose(
    query: jax.ShapeDtypeStruct | jax.Array,
    pool: jax.ShapeDtypeStruct | jax.Array,
    pages: Pages,
    *,
    scale: float,
    latent: int,
) -> Choice:
    """The first form that compiles for these shapes on the default device. Raises `NoFormError` if none does."""
    errors: list[str] = []
    for form in FORMS:
        run = jax.jit(partial(attend_pages, scale=scale, latent=latent, form=form))
        try:
            run.lower(query, pool, pages).compile()
        except Exception as error:  # whatever a compiler raises: the next form is tried, and the reason kept
            errors.append(f"{form}: {(str(error).splitlines() or [type(error).__name__])[0]}")
        else:
            return Choice(form, tuple(errors))
    raise NoFormError(f"attention over {latent} latents has no form here: {'; '.join(errors)}")


def attend_hopper(
    query: Float[Array, "requests verify heads kv_values"],
    pool: Float[Array, "pool_rows kv_values"],
    pages: Pages,
    scale: float,
    latent: int,
    multiprocessors: int,
) -> Result:
    """The kernel of `layouts.mla.hopper` over as many pieces as fill `multiprocessors`, and its pieces merged."""
    requests, verify, heads, width = query.shape
    require_supported(latent, width - latent, pool.dtype)
    rows = verify * heads
    padded = -(-rows // _BLOCK_ROWS) * _BLOCK_ROWS
    splits = split_count(requests * padded // _BLOCK_ROWS, pages.starts.shape[1], multiprocessors)
    limits = pages.limits.astype(jnp.int32)
    bounds = jnp.stack([limits.max(axis=1), limits.min(axis=1)], axis=1)
    fill = padded - rows
    flat = jnp.pad(query.reshape(requests, rows, width).astype(pool.dtype), ((0, 0), (0, fill), (0, 0)))
    by_row = jnp.pad(jnp.repeat(limits, heads, axis=1), ((0, 0), (0, fill)))
    starts = pages.starts.astype(jnp.int32)
    parts, part_lse = attend_parts(flat, pool, starts, by_row, bounds, scale=scale, splits=splits)
    output, lse = merge(parts, part_lse)
    output = output[:, :rows].astype(query.dtype).reshape(requests, verify, heads, latent)
    return output, lse[:, :rows].reshape(requests, verify, heads)


def _attend_here(query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int) -> Result:
    if jax.__version_info__[:2] < _OLDEST_JAX:
        raise MeshwrightError(f"jax {jax.__version__}: the kernel needs 0.11 or newer; use another form")
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", device.platform))
    if capability != _CAPABILITY:
        raise MeshwrightError(f"{capability}: the kernel is for compute capability {_CAPABILITY}; use another form")
    return attend_hopper(query, pool, pages, scale, latent, device.core_count)


def _attend_gathered(query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int) -> Result:
    rows = pages.starts[:, :, None] + jnp.arange(RUN, dtype=pages.starts.dtype)[None, None, :]
    rows = rows.reshape(len(query), -1)
    seen = jnp.arange(rows.shape[1])[None, None, :] < pages.limits[:, :, None]
    keys = pool[rows][:, :, None, :]
    return attend(query, keys, keys[..., :latent], seen, scale)


FORMS: Final[Mapping[str, Callable[[jax.Array, jax.Array, Pages, float, int], Result]]] = {
    "mosaic_gpu": _attend_here,
    "xla": _attend_gathered,
}
