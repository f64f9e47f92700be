"""A few pieces of an attention made one, in a kernel: one launch, which reads no piece that saw nothing."""

from functools import partial
from typing import Any, Final

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from layouts.paged.block import Index, columns, powers

_ROWS: Final = 4  # of a block: few, so that those of a small batch fill the device
_WARPS: Final = 4
_NOTHING: Final = float("-inf")


def merge_parts(
    parts: Float[Array, "requests splits rows width"],
    lse: Float[Array, "requests splits rows"],
    dtype: jax.typing.DTypeLike,
    interpret: bool = False,
) -> tuple[Float[Array, "requests rows width"], Float[Array, "requests rows"]]:
    """Output in `dtype` and log-sum-exp over all pieces; zero and -inf where none saw a token.

    What a piece that saw nothing left in its output does not matter.
    """
    requests, _, rows, width = parts.shape
    described = partial(jax.ShapeDtypeStruct, manual_axis_type=jax.typeof(parts).manual_axis_type)
    return pl.pallas_call(
        _merge,
        grid=(-(-rows // _ROWS), requests),
        out_shape=(described((requests, rows, width), dtype), described((requests, rows), jnp.float32)),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="merge_parts",
    )(parts, lse)


def _merge(parts: Any, lse: Any, output: Any, total_lse: Any) -> None:
    """The body, of a grid of groups of rows x requests."""
    _, splits, rows, width = parts.shape
    request = pl.program_id(1)
    row = pl.program_id(0) * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32)
    real = row < rows

    def of(split: jax.Array) -> jax.Array:
        return triton.load(lse.at[request, split, row], mask=real, other=_NOTHING)

    def step(split: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        highest, total = carry
        own = of(split)
        raised = jnp.maximum(highest, own)
        shift = jnp.where(raised == _NOTHING, 0.0, raised)
        return raised, total * jnp.exp(highest - shift) + jnp.exp(own - shift)

    nothing = jnp.full((_ROWS,), _NOTHING, jnp.float32)
    highest, total = lax.fori_loop(0, splits, step, (nothing, jnp.zeros_like(nothing)))
    shift = jnp.where(highest == _NOTHING, 0.0, highest)
    divisor = jnp.where(total > 0, total, 1.0)

    def add(split: jax.Array, sums: Index) -> Index:
        weight = jnp.exp(of(split) - shift) / divisor
        places, seen = (request, split, row), (weight > 0)[:, None]
        loaded = (triton.load(columns(parts, places, *part), mask=seen, other=0.0) for part in powers(0, width))
        return tuple(before + weight[:, None] * one for before, one in zip(sums, loaded, strict=True))

    zeros = tuple(jnp.zeros((_ROWS, size), jnp.float32) for _, size in powers(0, width))
    for part, one in zip(powers(0, width), lax.fori_loop(0, splits, add, zeros), strict=True):
        triton.store(columns(output, (request, row), *part), one.astype(output.dtype), mask=real[:, None])
    found = jnp.where(total > 0, shift + jnp.log(divisor), _NOTHING)
    triton.store(total_lse.at[request, row], found, mask=real)
