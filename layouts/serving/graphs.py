"""Captured decode graphs: which batch sizes exist, and which one a batch runs."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from hw.arithmetic import Arithmetic
from layouts.serving.errors import EngineRuleError, require_positive

# Where nothing is given, sizes step more finely with speculation, since each padded request pads all its draft tokens.
# (first, stop, step) of each run; the last run goes on to the largest batch. SGLang 0.5.23, cuda_graph_hook.
_PLAIN: Final = ((1, 2, 1), (2, 3, 1), (4, 5, 1), (8, 13, 4), (16, 257, 8), (272, 512, 16), (512, None, 32))
_SPECULATIVE: Final = ((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, None, 16))


def graph_sizes(
    max_requests: int,
    explicit: Iterable[int] | None = None,
    *,
    speculative: bool = False,
    alignment: int = 1,
    rows_a_request: int = 1,
) -> tuple[int, ...]:
    """The decode batch sizes that are captured, ascending, in requests of one attention group.

    `explicit` is the user's own list. A size stays only if `size x rows_a_request` is a multiple of `alignment` (the
    attention TP width where the rows are gathered over it) and not above `max_requests` rounded up to it; where the
    list goes beyond that bound, the bound itself is captured too.

    Source: SGLang 0.5.23, `generate_decode_cuda_graph_batch_sizes` and `get_batch_sizes_to_capture`.
    Raises `EngineRuleError` for a size below 1 or a list of which no size is left.
    """
    require_positive(max_requests=max_requests, alignment=alignment, rows_a_request=rows_a_request)
    sizes = _default_sizes(max_requests, speculative) if explicit is None else tuple(explicit)
    if not sizes or min(sizes) < 1:
        raise EngineRuleError(f"graph sizes {sizes} must be one or more positive integers: drop the others")
    bound = math.ceil(max_requests / alignment) * alignment
    if max(sizes) > bound:
        sizes = (*sizes, bound)
    kept = tuple(sorted({s for s in sizes if s <= bound and s * rows_a_request % alignment == 0}))
    if not kept:
        raise EngineRuleError(
            f"no graph size of {sizes} has {rows_a_request} rows a request in a multiple of {alignment}: "
            f"add {math.lcm(alignment, rows_a_request) // rows_a_request}"
        )
    return kept


def _default_sizes(max_requests: int, speculative: bool) -> tuple[int, ...]:
    runs = _SPECULATIVE if speculative else _PLAIN
    sizes = {s for first, stop, step in runs for s in range(first, stop or max_requests + 1, step)}
    return tuple(sorted({s for s in sizes if s <= max_requests} | {max_requests}))


def graph_batch(
    arithmetic: Arithmetic, requests: ArrayLike, sizes: Sequence[int] | Real[Array, " sizes"]
) -> Float[Array, "..."]:
    """Requests that a group computes when `requests` run: the smallest captured size that holds them.

    Beyond the largest size there is no graph, and a batch computes what it has. `requests` may have any shape; `sizes`
    ascends (a list padded to a common length by repeating its last size is fine). Each gap between two sizes is one
    `ceil`, so in either arithmetic the result equals `requests` at every captured size and rises in between.
    """
    requests = jnp.asarray(requests, dtype=float)
    upper = jnp.asarray(sizes, dtype=float).reshape((-1,) + (1,) * requests.ndim)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]])
    gap = upper - lower
    # a repeated size has no gap to fill
    filled = jnp.clip((requests[None] - lower) / jnp.where(gap > 0, gap, 1.0), 0.0, 1.0)
    return jnp.sum(gap * arithmetic.ceil(filled), axis=0) + jnp.maximum(requests - upper[-1], 0.0)
