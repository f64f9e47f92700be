"""The requests that were cut, made whole: a Pallas kernel (Triton) of a program a query row and cut."""

from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from layouts.mla.hopper.schedule import request_at, share_of
from layouts.mla.shares import START

_PIECES: Final = 16  # pieces that are read together
_NOTHING: Final = float("-inf")

Carry = tuple[Array, Array, Array]  # the highest log-sum-exp, and by it the sum of weights and of weighted pieces


class _Refs(NamedTuple):
    """References in memory; `whole` and `whole_lse` are those of `out` and `out_lse`."""

    whole: Any
    whole_lse: Any
    parts: Any
    part_lse: Any
    begins: Any
    out: Any
    out_lse: Any


def merge(
    whole: Float[Array, "requests*rows latent"],
    whole_lse: Float[Array, " requests*rows"],
    parts: Float[Array, "2*gangs*rows latent"],
    part_lse: Float[Array, " 2*gangs*rows"],
    begins: Int[Array, " requests+1"],
    *,
    gangs: int,
    interpret: bool = False,
) -> tuple[Float[Array, "requests*rows latent"], Float[Array, " requests*rows"]]:
    """`whole` and its log-sum-exps with the rows of requests that were cut, from `parts`.

    Of the 2 x gangs pieces, [g] is that of gang g that began in an earlier gang, [gangs + g] that of gang g that goes
    on. `interpret`: as JAX operations, on any device.
    """
    rows = len(parts) // (2 * gangs)
    kind = jax.typeof(whole).manual_axis_type
    launch = pl.pallas_call(
        lambda *refs: _row(_Refs(*refs), gangs, rows),
        grid=(min(gangs, len(begins) - 1), rows),
        out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=kind) for x in (whole, whole_lse)),
        input_output_aliases={0: 0, 1: 1},
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
        name="merge_pieces",
    )
    return tuple(
        launch(whole, whole_lse, parts.reshape(2 * gangs, rows, -1), part_lse.reshape(2 * gangs, rows), begins)
    )


def _row(refs: _Refs, gangs: int, rows: int) -> None:
    """A row of a request that was cut. A program asks for one request, or, where there are more of them than gangs, for
    the one that goes on behind the share of one gang."""
    unit, row, requests = pl.program_id(0), pl.program_id(1), refs.begins.shape[0] - 1
    share = share_of(refs.begins, requests, gangs)
    request = unit if requests <= gangs else request_at(refs.begins, requests, (unit + 1) * share)
    begin, end = refs.begins[request] + START, refs.begins[request + 1]
    gang = begin // share if requests <= gangs else unit

    @pl.when((begin // share == gang) & (end > (gang + 1) * share))
    def _() -> None:
        last = (end - 1) // share
        opening = refs.part_lse[gangs + gang, row], jnp.float32(1), refs.parts[gangs + gang, row, :]
        step = partial(_added, refs, gang + 1, last, row)
        highest, total, sums = lax.fori_loop(0, (last - gang + _PIECES - 1) // _PIECES, step, opening)
        seen = highest > _NOTHING
        refs.out[request * rows + row, :] = jnp.where(seen, sums / total, 0.0).astype(refs.out.dtype)
        refs.out_lse[request * rows + row] = jnp.where(seen, highest + jnp.log(total), _NOTHING)


def _added(refs: _Refs, first: Array, last: Array, row: Array, step: Array, carry: Carry) -> Carry:
    """The next pieces of those from gang `first` to gang `last`."""
    highest, total, sums = carry
    first = first + step * _PIECES
    pieces, real = pl.ds(first, _PIECES), first + jnp.arange(_PIECES) <= last
    lse = triton.load(refs.part_lse.at[pieces, row], mask=real, other=_NOTHING)
    part = triton.load(refs.parts.at[pieces, row, :], mask=real[:, None], other=0.0)
    raised = jnp.maximum(highest, lse.max())
    shift = jnp.where(raised == _NOTHING, 0.0, raised)
    weights, factor = jnp.exp(lse - shift), jnp.exp(highest - shift)
    return raised, total * factor + weights.sum(), sums * factor + (weights[:, None] * part).sum(axis=0)
