"""Values of four bits, two to a byte, the first of a pair in the low half.

That is the order of gpt-oss's `blocks` (transformers 5.24, integrations/mxfp4.py: convert_moe_packed_tensors) and of
compressed-tensors' `weight_packed` (compressors of nvfp4, mxfp4 and, as the bytes of little-endian int32, of int4).
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

E2M1_LARGEST: Final = 6.0  # OCP Microscaling Formats 1.0, table 5: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
INT4_LARGEST: Final = 7.0  # of the positive ones
# Above the first of each pair of neighbours by half their distance; a tie goes to the even code of the two.
_BETWEEN: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def pack(codes: UInt8[Array, "*rest values"]) -> UInt8[Array, "*rest bytes"]:
    """Codes of an even number of values as bytes."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: UInt8[Array, "*rest bytes"]) -> UInt8[Array, "*rest values"]:
    """The codes of `pack`."""
    return jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def to_e2m1(values: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
    """Codes (sign, two bits of exponent, one of mantissa) of the nearest values, ties to even, beyond 6 to 6."""
    size = jnp.abs(values)
    above = [size > least if i % 2 == 0 else size >= least for i, least in enumerate(_BETWEEN)]
    code = sum((one.astype(jnp.uint8) for one in above), jnp.zeros(values.shape, jnp.uint8))
    return code | (jnp.signbit(values).astype(jnp.uint8) << 3)


def of_e2m1(codes: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Values of e2m1 codes, float32."""
    exponent, mantissa = (codes >> 1) & 3, codes & 1
    # in halves: the mantissa itself below 1, else 2 + mantissa doubled with each exponent
    halves = jnp.where(exponent == 0, mantissa, (2 + mantissa) << jnp.maximum(exponent, 1) - 1)
    size = halves.astype(jnp.float32) * 0.5
    return jnp.where(codes >> 3 == 1, -size, size)


def to_int4(values: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
    """Codes, 8 more than the nearest integer in -8 .. 7 (the offset of compressed-tensors' pack-quantized)."""
    return (jnp.clip(jnp.rint(values), -INT4_LARGEST - 1, INT4_LARGEST) + 8).astype(jnp.uint8)


def of_int4(codes: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Integers of such codes, float32."""
    return codes.astype(jnp.float32) - 8
