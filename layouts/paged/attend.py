"""Attention over pages in its forms: a kernel, its operations one by one for tests, and whole pages read by XLA."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.combine import partial
from layouts.combine.reference import merge
from layouts.kernels import INTERPRETED, PLAIN
from layouts.paged.block import Entry, Tiling
from layouts.paged.kernel import attend_parts
from layouts.paged.merge import merge_parts
from layouts.paged.pages import Pages
from layouts.paged.tiling import tiling_of

Result = tuple[Float[Array, "requests verify heads width"], Float[Array, "requests verify heads"]]
TRIED: Final = ("triton", PLAIN)
# pieces that a kernel merges faster, one after the other, than XLA's two launches, which read them side by side
_MERGED_IN_TURN: Final = 8
_SOME: Final = 4  # multiprocessors of a device that does not say, to have pieces that are to be merged


def attend_pages(
    query: Float[Array, "requests verify heads key"],
    pool: Float[Array, "pool_rows kv_heads entry"],
    pages: Pages,
    *,
    entry: Entry,
    scale: float,
    run: int,
    form: str,
    sinks: Float[Array, " heads"] | None = None,
) -> Result:
    """Output (dtype of the query) and float32 log-sum-exp, base e, of each row; zero and -inf where it sees nothing.

    `run` tokens of a request lie together. heads / kv_heads query heads in a row share a KV head. `sinks` is a logit a
    head that takes weight and brings no value, -inf on ranks that do not count it. `form` is one of `FORMS`. Pool rows
    that no row sees may hold anything.
    """
    output, lse = FORMS[form](query, pool, pages, entry, scale, run)
    return (output, lse) if sinks is None else _with_sinks(output, lse, sinks)


def attend_tiled(
    query: Float[Array, "requests verify heads key"],
    pool: Float[Array, "pool_rows kv_heads entry"],
    pages: Pages,
    entry: Entry,
    scale: float,
    run: int,
    tiling: Tiling,
    interpret: bool = False,
) -> Result:
    """The kernel of `layouts.paged.kernel`, and its pieces merged."""
    shape = (len(query), tiling.splits, query.shape[1] * query.shape[2])
    parts = attend_parts(query, pool, pages, entry=entry, scale=scale, run=run, tiling=tiling, interpret=interpret)
    output, lse = parts.output.reshape(*shape, -1), parts.lse.reshape(shape)
    if tiling.splits == 1:
        output, lse = output[:, 0], lse[:, 0]
    elif tiling.splits <= _MERGED_IN_TURN:
        output, lse = merge_parts(output, lse, query.dtype, interpret)
    else:
        output, lse = merge(output, lse, axis=1)
    return output.astype(query.dtype).reshape(*query.shape[:3], -1), lse.reshape(query.shape[:3])


def _attend_triton(
    query: jax.Array, pool: jax.Array, pages: Pages, entry: Entry, scale: float, run: int, interpret: bool = False
) -> Result:
    device: Any = jax.devices()[0]
    tokens = run * pages.starts.shape[1]
    tiling = tiling_of(query.shape, pool, entry, tokens, getattr(device, "core_count", _SOME))
    return attend_tiled(query, pool, pages, entry, scale, run, tiling, interpret)


def _attend_interpreted(
    query: jax.Array, pool: jax.Array, pages: Pages, entry: Entry, scale: float, run: int
) -> Result:
    return _attend_triton(query, pool, pages, entry, scale, run, interpret=True)


def _attend_gathered(query: jax.Array, pool: jax.Array, pages: Pages, entry: Entry, scale: float, run: int) -> Result:
    rows = pages.starts[:, :, None] + jnp.arange(run, dtype=pages.starts.dtype)[None, None, :]
    rows = rows.reshape(len(query), -1)
    token = jnp.arange(rows.shape[1], dtype=rows.dtype)[None, None, :]
    seen = token < pages.limits[:, :, None]
    if pages.lows is not None:
        seen &= token >= pages.lows[:, :, None]
    read = pool[rows]
    values = read[..., entry.start : entry.start + entry.width]
    return partial.attend(query, read[..., : entry.key], values, seen, scale)


def _with_sinks(output: jax.Array, lse: jax.Array, sinks: jax.Array) -> Result:
    total = jnp.logaddexp(lse, sinks.astype(jnp.float32)[None, None, :])
    kept = jnp.where(jnp.isneginf(lse), 0.0, jnp.exp(lse - total))
    return (output.astype(jnp.float32) * kept[..., None]).astype(output.dtype), total


FORMS: Final[Mapping[str, Callable[[jax.Array, jax.Array, Pages, Entry, float, int], Result]]] = {
    "triton": _attend_triton,
    INTERPRETED: _attend_interpreted,
    PLAIN: _attend_gathered,
}
