"""Absorbed attention over latents that lie in pages of a pool: the fastest form that the device at hand can run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hw.errors import MeshwrightError
from layouts.collectives import vary_alike
from layouts.kernels import PLAIN, Choice, first_form
from layouts.mla.hopper import attend_parts, merge, require_supported, split_count
from layouts.paged import RUN, Pages
from layouts.paged import attend as paged
from layouts.paged.block import Entry

__all__ = ["FORMS", "RUN", "Pages", "attend_hopper", "attend_pages", "choose"]

TRIED: Final = ("mosaic_gpu", "triton", PLAIN)
_BLOCK_ROWS: Final = 64  # query rows of a block of the kernel
_CAPABILITY: Final = "9.0"
_OLDEST_JAX: Final = (0, 11)  # Mosaic GPU before it has other signatures and no layout inference by default

Result = tuple[Float[Array, "requests verify heads latent"], Float[Array, "requests verify heads"]]


def attend_pages(
    query: Float[Array, "requests verify heads kv_values"],
    pool: Float[Array, "pool_rows kv_values"],
    pages: Pages,
    *,
    scale: float,
    latent: int,
    form: str,
    run: int = RUN,
) -> Result:
    """Output (dtype of the query) and float32 log-sum-exp, base e, of each row; zero and -inf where it sees nothing.

    Values are the first `latent` of the keys; `run` of them lie together. `form` is one of `FORMS`, as `choose` gives
    it. Pool rows that no row sees may hold anything.
    """
    return FORMS[form](query, pool, pages, scale, latent, run)


def choose(
    query: jax.ShapeDtypeStruct | jax.Array,
    pool: jax.ShapeDtypeStruct | jax.Array,
    pages: Pages,
    *,
    scale: float,
    latent: int,
) -> Choice:
    """The first form that compiles for these shapes on the default device. Raises `NoFormError` if none does."""

    def compiled(form: str) -> None:
        run = jax.jit(partial(attend_pages, scale=scale, latent=latent, form=form))
        run.lower(query, pool, pages).compile()

    return first_form(f"attention over {latent} latents", TRIED, compiled)


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
    given = vary_alike(flat, pool, starts, by_row, bounds)
    parts, part_lse = attend_parts(*given, scale=scale, splits=splits)
    output, lse = merge(parts, part_lse)
    output = output[:, :rows].astype(query.dtype).reshape(requests, verify, heads, latent)
    return output, lse[:, :rows].reshape(requests, verify, heads)


def _attend_here(query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int, run: int) -> Result:
    if jax.__version_info__[:2] < _OLDEST_JAX:
        raise MeshwrightError(f"jax {jax.__version__}: the kernel needs 0.11 or newer; use another form")
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", device.platform))
    if capability != _CAPABILITY:
        raise MeshwrightError(f"{capability}: the kernel is for compute capability {_CAPABILITY}; use another form")
    if run != RUN:
        raise MeshwrightError(f"runs of {run} tokens: the kernel takes {RUN}; make pages of a multiple of them")
    return attend_hopper(query, pool, pages, scale, latent, device.core_count)


def _attend_paged(
    form: str, query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int, run: int
) -> Result:
    entry = Entry(pool.shape[1], 0, latent)
    return paged.attend_pages(query, pool[:, None, :], pages, entry=entry, scale=scale, run=run, form=form)


FORMS: Final[Mapping[str, Callable[[jax.Array, jax.Array, Pages, float, int, int], Result]]] = {
    "mosaic_gpu": _attend_here,
    **{form: partial(_attend_paged, form) for form in paged.FORMS},
}
