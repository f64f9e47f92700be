"""Rows through the experts that a rank holds: two grouped GEMMs, in the form that the device at hand runs fastest."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from hw.errors import MeshwrightError
from layouts.dense.activation import Activation
from layouts.kernels import INTERPRETED, PLAIN
from layouts.moe.kernel import Ends, Operand, factor_of, order_by_expert, product, tile_of
from layouts.moe.reference import Experts

NOWHERE = -1  # expert of a row that this rank has nothing to compute for
TRIED: Final = ("triton", PLAIN)
_OLDEST: Final = 9.0  # compute capability that the tiles fit
_SOME: Final = 4  # multiprocessors of a device that does not say


def to_local(
    experts: Int[Array, "rows topk"], real: Bool[Array, " rows"], first: Int[Array, ""], held: int
) -> Int[Array, "rows topk"]:
    """Global expert numbers as those of a rank that holds `held` from `first` on; NOWHERE for all others.

    Padded rows are taken out after the map, as the engines do: a number taken out before it would be mapped to an
    expert again (serving rules, DP attention).
    """
    local = experts - first
    mine = (local >= 0) & (local < held)
    return jnp.where(real[:, None], jnp.where(mine, local, NOWHERE), NOWHERE)


def grouped(
    x: Float[Array, "rows width"],
    local: Int[Array, "rows topk"],
    experts: Experts,
    activation: Activation,
    with_bias: Bool[Array, ""],
    *,
    form: str = PLAIN,
    mean: float | None = None,
) -> Float[Array, "rows topk width"]:
    """Output of each local choice of each row; anything for a choice that is NOWHERE.

    Nothing is dropped: room is kept for the most choices that can be local. `with_bias` says whether this rank adds
    the bias of the second GEMM (one rank of those that share an expert does). `form`: one of `FORMS`; the plain one
    leaves sums in float32, others in the dtype of x. `mean`: rows that an expert can expect, where it is not all
    choices evenly spread.
    """
    mean = local.size / experts.w13.shape[0] if mean is None else mean
    return FORMS[form](x, local, experts, activation, with_bias, mean)


def compile_form(
    form: str,
    x: jax.ShapeDtypeStruct | Array,
    local: jax.ShapeDtypeStruct | Array,
    experts: Experts,
    activation: Activation,
    mean: float | None = None,
) -> None:
    """Compile a form for arrays of these shapes on the default device; raises whatever that raises."""
    run = partial(grouped, activation=activation, with_bias=jnp.bool_(True), form=form, mean=mean)
    jax.jit(run).lower(x, local, experts).compile()


def _with_kernel(
    interpret: bool, x: Array, local: Array, experts: Experts, activation: Activation, with_bias: Array, mean: float
) -> Array:
    """The kernels of `layouts.moe.kernel`: no row is copied to its expert's, and none is left where nothing is."""
    (rows, topk), held = local.shape, experts.w13.shape[0]
    order = order_by_expert(local.reshape(-1), held, interpret=interpret)
    device: Any = jax.devices()[0]
    multiprocessors = getattr(device, "core_count", _SOME)
    room = rows * min(topk, held)
    run = partial(product, order=order, room=room, multiprocessors=multiprocessors, interpret=interpret)

    def activated(gate: Array, up: Array) -> Array:
        return activation(gate.astype(x.dtype), up.astype(x.dtype))

    first = factor_of(experts.w13, experts.w13_bias, x.dtype)
    bias = None if experts.w2_bias is None else jnp.where(with_bias, experts.w2_bias.astype(jnp.float32), 0.0)
    second = factor_of(experts.w2, bias, x.dtype)
    inner = run(
        first.operand(x.dtype).of(x), first, ends=Ends(source=topk), finish=activated,
        result=second.operand(x.dtype), tile=tile_of(first.kind, mean),
    )  # fmt: skip
    alone = topk == 1  # a row's only choice: its result goes where it came from
    out = run(
        inner, second, ends=Ends(back=alone), finish=lambda sums: sums,
        result=Operand(x.dtype), tile=tile_of(second.kind, mean),
    )  # fmt: skip
    if not alone:
        out = out[order.row]
    return out.reshape(rows, topk, -1)


def _with_triton(*args: Any) -> Array:
    device: Any = jax.devices()[0]
    capability = getattr(device, "compute_capability", None)
    if capability is None or float(capability) < _OLDEST:
        raise MeshwrightError(
            f"{capability or device.platform}: the kernel is for compute capability {_OLDEST} on; use another form"
        )
    return _with_kernel(False, *args)


def _plain(x: Array, local: Array, experts: Experts, activation: Activation, with_bias: Array, mean: float) -> Array:
    """XLA's grouped GEMM over rows that are copied to the order of their experts."""
    rows, topk = local.shape
    held = experts.w13.shape[0]
    room = rows * min(topk, held)
    group = jnp.where(local == NOWHERE, held, local).reshape(-1)
    order = jnp.argsort(group, stable=True)
    sizes = (group[:, None] == jnp.arange(held, dtype=group.dtype)[None, :]).sum(axis=0, dtype=jnp.int32)
    at = group[order[:room]]
    inside = (at < held)[:, None]
    at = jnp.minimum(at, held - 1)
    # what padding left in its rows must not reach a sum, NaN included
    sent = jnp.where(inside, x[order[:room] // topk], jnp.zeros((), x.dtype))
    inner = _first(sent, at, sizes, experts, activation)
    out = lax.ragged_dot(inner, experts.w2.astype(x.dtype).swapaxes(1, 2), sizes, preferred_element_type=jnp.float32)
    if experts.w2_bias is not None:
        out = out + jnp.where(with_bias, experts.w2_bias.astype(jnp.float32), 0.0)[at]
    # each choice finds its place in the sorted rows; those behind the room are NOWHERE
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return jnp.take(out, place, axis=0, mode="fill", fill_value=0).reshape(rows, topk, -1)


def _first(sent: Array, at: Array, sizes: Array, experts: Experts, activation: Activation) -> Array:
    """Gate and up projection in one grouped GEMM, and the activation."""
    held, _, intermediate, width = experts.w13.shape
    w13 = experts.w13.astype(sent.dtype).reshape(held, 2 * intermediate, width)
    projected = lax.ragged_dot(sent, w13.swapaxes(1, 2), sizes, preferred_element_type=jnp.float32)
    projected = projected.reshape(-1, 2, intermediate)
    if experts.w13_bias is not None:
        projected = projected + experts.w13_bias.astype(jnp.float32)[at]
    projected = projected.astype(sent.dtype)
    return activation(projected[:, 0], projected[:, 1])


FORMS: Final[Mapping[str, Callable[..., Array]]] = {
    "triton": _with_triton,
    INTERPRETED: partial(_with_kernel, True),
    PLAIN: _plain,
}
