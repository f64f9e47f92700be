"""Absorbed attention over latents that lie in pages of a pool: the fastest form that the device at hand can run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import jax
from jaxtyping import Array, Float

from layouts.kernels import MOSAIC, PLAIN, Choice, first_compiled
from layouts.mla.hopper import attend_runs, require_supported
from layouts.mosaic import device_for_kernels
from layouts.paged import RUN, Pages
from layouts.paged import attend as paged
from layouts.paged.block import Entry

__all__ = ["FORMS", "RUN", "Pages", "attend_pages", "compile_pages"]

TRIED: Final = (MOSAIC, "triton", PLAIN)

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

    Values are the first `latent` of the keys; `run` of them lie together. `form` is one of `FORMS`, as `compile_pages`
    finds it. Pool rows that no row sees may hold anything.
    """
    return FORMS[form](query, pool, pages, scale, latent, run)


def compile_pages(
    query: jax.ShapeDtypeStruct | jax.Array,
    pool: jax.ShapeDtypeStruct | jax.Array,
    pages: Pages,
    *,
    scale: float,
    latent: int,
    run: int = RUN,
) -> tuple[Choice, Callable[[jax.Array, jax.Array, Pages], Result]]:
    """The first form that compiles for these shapes on the default device, and that compiled. Raises `NoFormError` if
    none does."""

    def compiled(form: str) -> Any:
        attend = jax.jit(partial(attend_pages, scale=scale, latent=latent, form=form, run=run))
        return attend.lower(query, pool, pages).compile()

    return first_compiled(f"attention over {latent} latents", TRIED, compiled)


def _attend_here(query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int, run: int) -> Result:
    device = device_for_kernels()
    require_supported(latent, query.shape[-1] - latent, pool.dtype, run)
    return attend_runs(query, pool, pages.starts, pages.limits, scale=scale, run=run, multiprocessors=device.core_count)


def _attend_paged(
    form: str, query: jax.Array, pool: jax.Array, pages: Pages, scale: float, latent: int, run: int
) -> Result:
    entry = Entry(pool.shape[1], 0, latent)
    return paged.attend_pages(query, pool[:, None, :], pages, entry=entry, scale=scale, run=run, form=form)


FORMS: Final[Mapping[str, Callable[[jax.Array, jax.Array, Pages, float, int, int], Result]]] = {
    MOSAIC: _attend_here,
    **{form: partial(_attend_paged, form) for form in paged.FORMS},
}
