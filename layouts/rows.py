"""Rows of a pool that a step writes, named by a table."""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

PADDING: Final = 0  # the row that stands for none: what it holds means nothing


def written(
    pool: Shaped[Array, "rows entries ..."], rows: Int[Array, " values"], values: Shaped[Array, "values first ..."]
) -> Shaped[Array, "rows entries ..."]:
    """The pool with a value in each of the rows, cast to what it stores, and nothing for PADDING, however often that is
    named; no other row may be named twice, and none is negative. Of a row with more entries than a value the first are
    written.

    Unless it knows that no row comes twice, XLA writes values of two bytes by compare-and-swap, and those of a row wait
    for each other: on an H200 1 ms for the 128 of 256 tokens that another rank owned.
    """
    beyond = len(pool) + jnp.arange(len(rows), dtype=rows.dtype)  # past the end, so left out, and no two alike
    at = jnp.where(rows == PADDING, beyond, rows)
    return pool.at[at, : values.shape[1]].set(values.astype(pool.dtype), mode="drop", unique_indices=True)
