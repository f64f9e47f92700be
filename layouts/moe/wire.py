"""What rows travel as: in their own dtype, or as fp8 with one float32 scale for each 128 values in the same message."""

from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from layouts.shapes import ShapeError

SCALED: Final = 128  # values that share a scale (DeepEP, SGLang's fp8 gather)
_LARGEST: Final = 448.0  # of float8 e4m3
_SMALLEST_SCALE: Final = 1e-4 / _LARGEST  # a block of zeros must not divide by zero


@dataclass(frozen=True)
class Wire:
    """`fp8`: lossy. Of a block with largest value m a value v arrives within max(|v| / 16, m / 448 / 1024) of v: half
    the step of a 3-bit mantissa, or half the step of the subnormals."""

    fp8: bool = False

    def encode(self, x: Float[Array, "rows width"]) -> Array:
        """The message: x itself, or uint8 of width + 4 x width / 128 bytes a row; ShapeError for a ragged width."""
        if not self.fp8:
            return x
        rows, width = x.shape
        if width % SCALED:
            raise ShapeError(
                f"fp8 wire: rows of {width} values are not whole blocks of {SCALED}: send them as they are"
            )
        blocks = x.astype(jnp.float32).reshape(rows, width // SCALED, SCALED)
        scale = jnp.maximum(jnp.abs(blocks).max(axis=-1) / _LARGEST, _SMALLEST_SCALE)
        payload = (blocks / scale[:, :, None]).astype(jnp.float8_e4m3fn).reshape(rows, width)
        return jnp.concatenate([_bytes(payload), _bytes(scale).reshape(rows, -1)], axis=1)

    def decode(self, message: Array, dtype: jax.typing.DTypeLike) -> Float[Array, "rows width"]:
        """The rows of a message that `encode` made."""
        if not self.fp8:
            return message
        rows, size = message.shape
        width = size * SCALED // (SCALED + 4)
        payload = lax.bitcast_convert_type(message[:, :width], jnp.float8_e4m3fn).astype(jnp.float32)
        scale = lax.bitcast_convert_type(message[:, width:].reshape(rows, -1, 4), jnp.float32)
        return (payload.reshape(rows, -1, SCALED) * scale[:, :, None]).reshape(rows, width).astype(dtype)


PLAIN: Final = Wire()


def _bytes(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.uint8)
