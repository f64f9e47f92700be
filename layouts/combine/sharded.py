"""The DCP combine inside `shard_map`: each rank brings all heads of its group over its own tokens, and leaves with its
own heads over all tokens.

ag_rs: log-sum-exps are gathered, outputs scaled in float32 and reduce-scattered over heads. a2a: output and
log-sum-exp travel packed in one all-to-all. fi_a2a is the same exchange fused into one kernel by an engine; as a
program it is a2a. Rules: a log-sum-exp of NaN or +inf counts as -inf, a row that no rank has tokens of is zero.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from layouts.collectives import AxisNames, all_gather, all_to_all, reduce_scatter
from layouts.combine.reference import merge
from layouts.layout import DCP_BACKENDS
from layouts.serving.errors import EngineRuleError


def combine(
    output: Float[Array, "rows heads width"],
    lse: Float[Array, "rows heads"],
    axes: AxisNames,
    backend: str,
    base: float = math.e,
) -> Float[Array, "rows own_heads width"]:
    """This rank's heads / dcp heads, merged over the DCP group `axes`. `lse` is float32, in base e or 2.

    Weights and sums are float32, the result has the dtype of `output`. Both backends move exactly the bytes of
    `layouts.combine.work`.
    """
    if backend not in DCP_BACKENDS:
        raise EngineRuleError(f"dcp_backend = {backend} is unknown: choose one of {', '.join(DCP_BACKENDS)}")
    lse = _counted(lse.astype(jnp.float32)) * math.log(base)
    if not axes:
        return jnp.where(jnp.isneginf(lse)[..., None], jnp.zeros_like(output), output)
    return _scale_and_scatter(output, lse, axes) if backend == "ag_rs" else _exchange_and_merge(output, lse, axes)


def _counted(lse: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(lse) | jnp.isposinf(lse), -jnp.inf, lse)


def _scale_and_scatter(output: jax.Array, lse: jax.Array, axes: AxisNames) -> jax.Array:
    total = jax.nn.logsumexp(all_gather(lse[None], axes, 0), axis=0)
    weight = jnp.where(jnp.isneginf(lse), 0.0, jnp.exp(lse - jnp.where(jnp.isneginf(total), 0.0, total)))
    # not a product alone: zero times the NaN of an empty rank is NaN
    scaled = jnp.where(weight[..., None] > 0, output.astype(jnp.float32), 0.0) * weight[..., None]
    return reduce_scatter(scaled, axes, 1).astype(output.dtype)


def _exchange_and_merge(output: jax.Array, lse: jax.Array, axes: AxisNames) -> jax.Array:
    parts = all_to_all(_pack(output, lse)[None], axes, 2, 0)
    return merge(*_unpack(parts, output.dtype, output.shape[-1]))[0]


def _pack(output: jax.Array, lse: jax.Array) -> jax.Array:
    """Output and the float32 LSE behind it as unsigned words of the output's size: no exchange may round a word."""
    word = jnp.dtype(f"uint{8 * output.dtype.itemsize}")
    columns = lax.bitcast_convert_type(lse, word).reshape(*lse.shape, -1)
    return jnp.concatenate([lax.bitcast_convert_type(output, word), columns], axis=-1)


def _unpack(packed: jax.Array, dtype: jnp.dtype, width: int) -> tuple[jax.Array, jax.Array]:
    columns = packed[..., width:]
    columns = columns.squeeze(-1) if columns.shape[-1] == 1 else columns
    return lax.bitcast_convert_type(packed[..., :width], dtype), lax.bitcast_convert_type(columns, jnp.float32)
