"""Weights as arrays in the formats that they are stored in: payloads, and scales over blocks of them.

A value is payload x scale of its block (x the scale of its matrix in nvfp4), worked out in float32:

    fp8     float8 e4m3, one float32 scale a block of 128 x 128 (DeepSeek-V3's `weight_scale_inv`)
    mxfp4   e2m1, one power of two (E8M0) a group of 32 inputs (OCP Microscaling Formats 1.0)
    nvfp4   e2m1, one e4m3 scale a group of 16 inputs and one float32 a matrix
    int4    -8 .. 7, one bf16 scale a group of inputs (compressed-tensors pack-quantized, symmetric)

Values of four bits lie two to a byte along the input, the last dimension (`layouts.four_bits`). A matrix is the last
two dimensions of a weight, or where its input has several the last of them and the one before all; the others are
indices. Blocks at the end of a dimension may be ragged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Shaped

from layouts import four_bits
from layouts.shapes import ShapeError
from layouts.tensor import Format

_E4M3_LARGEST: Final = 448.0


@dataclass(frozen=True)
class _Codec:
    """`largest`: that the payload can hold; `scale`: what is stored for a wanted scale; `encode` and `decode`: payload
    of float32 values and back; `width`: bytes of one scale."""

    largest: float
    scale: Callable[[Array], Array]
    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]
    width: int
    packed: bool = True


def _to_e4m3(values: Array) -> Array:
    """Nearest e4m3. Of quotients by a scale from the largest value none passes 448 by more than its rounding."""
    return values.astype(jnp.float8_e4m3fn)


def _to_e8m0(wanted: Array) -> Array:
    """The least power of two that is not below: no value of the group is then beyond the largest."""
    mantissa, exponent = jnp.frexp(wanted)
    exponent = jnp.where(mantissa == 0.5, exponent - 1, exponent)
    return jnp.ldexp(jnp.ones_like(wanted), exponent).astype(jnp.float8_e8m0fnu)


def _fp4_codec(scale: Callable[[Array], Array]) -> _Codec:
    return _Codec(four_bits.E2M1_LARGEST, scale, four_bits.to_e2m1, four_bits.of_e2m1, 1)


_CODECS: Final = {
    "fp8": _Codec(_E4M3_LARGEST, lambda x: x, _to_e4m3, lambda x: x.astype(jnp.float32), 4, packed=False),
    "mxfp4": _fp4_codec(_to_e8m0),
    "nvfp4": _fp4_codec(_to_e4m3),
    "int4": _Codec(four_bits.INT4_LARGEST, lambda x: x.astype(jnp.bfloat16), four_bits.to_int4, four_bits.of_int4, 2),
}


class Stored(eqx.Module):
    """A weight in the format of a name. It has a weight's `shape` and `astype`, which is all that products ask for.

    `block`: how many values along each dimension share a scale. `matrix`: nvfp4's scale of each matrix, of as many
    dimensions as the weight. In place of the arrays may stand what describes them: their shapes or specs.
    """

    payload: Shaped[Array, "..."]
    scale: Shaped[Array, "..."]
    matrix: Float[Array, "..."] | None
    name: str = eqx.field(static=True)
    block: tuple[int, ...] = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the weight in values."""
        *rest, last = self.payload.shape
        return (*rest, 2 * last if _CODECS[self.name].packed else last)

    def astype(self, dtype: jax.typing.DTypeLike) -> Float[Array, "..."]:
        """The values, float32 arithmetic rounded to the dtype."""
        codec, payload = _CODECS[self.name], self.payload.astype(self.payload.dtype)  # one that came in blocks, joined
        values = codec.decode(four_bits.unpack(payload) if codec.packed else payload)
        scale = self.scale.astype(jnp.float32)
        scale = scale if self.matrix is None else scale * self.matrix
        return (values * _spread(scale, self.block, self.shape)).astype(dtype)

    def cut(self, parts: tuple[int, ...]) -> "Stored":
        """The same values, to be cut into so many equal parts along each dimension, each with scales of its own.

        Where a part is not whole blocks, the blocks are cut to the largest length that divides both and their scales
        repeated: bytes of scales grow, values stay. ShapeError where a part would be half a byte.
        """
        packed = _CODECS[self.name].packed
        if packed and self.shape[-1] // parts[-1] % 2:
            raise ShapeError(
                f"{self.name}: {self.shape[-1]} inputs in {parts[-1]} parts are cut inside a byte of two: use fewer"
            )
        sizes = zip(self.block, self.shape, parts, strict=True)
        block = tuple(b if n == 1 else math.gcd(b, size // n) for b, size, n in sizes)
        scale = self.scale
        for axis, (new, old, size) in enumerate(zip(block, self.block, self.shape, strict=True)):
            if new != old:
                scale = jnp.take(scale, jnp.arange(-(-size // new), dtype=jnp.int32) * new // old, axis=axis)
        return replace(self, scale=scale, block=block)


def is_stored(node: object) -> bool:
    """Whether a node of a tree of weights is stored in blocks."""
    return isinstance(node, Stored)


def quantise(weight: Float[Array, "..."], form: Format, inputs: int = 1, runs: int = 1) -> Stored:
    """A weight in one of the formats that have scales. Its last `inputs` dimensions are the input, and the output is of
    so many equal `runs` that share no block.

    Every value becomes the nearest one that its block's scale allows. A block's scale is the least that brings its
    largest value within reach, as rounded to what scales are stored in (up, where they are powers of two).
    """
    codec, block = _CODECS[form.name], _block(form, weight.shape, inputs, runs)
    if codec.packed and weight.shape[-1] % 2:
        raise ShapeError(f"{form.name}: {weight.shape[-1]} inputs do not fill bytes of two: pad them to an even number")
    wide = weight.astype(jnp.float32)
    largest = _largest(jnp.abs(wide), block)
    matrix = _matrix(largest, codec, inputs) if form.name == "nvfp4" else None
    wanted = largest / codec.largest if matrix is None else largest / (codec.largest * matrix)
    scale = codec.scale(wanted)
    held = scale.astype(jnp.float32) * (1.0 if matrix is None else matrix)
    each = _spread(held, block, weight.shape)
    # a scale is zero where all values of its block are, or are too small for it
    codes = codec.encode(jnp.where(each > 0, wide / jnp.where(each > 0, each, 1.0), 0.0))
    return Stored(four_bits.pack(codes) if codec.packed else codes, scale, matrix, form.name, block)


def specs_of(stored: Any, payload: PartitionSpec, scale: PartitionSpec) -> Any:
    """Specs of a Stored (or of what describes one) whose payload is cut like its weight. `scale`: how the weight is cut
    apart from its rows in a weight shard, over which scales are whole."""
    matrix = stored.matrix
    if matrix is not None:
        entries = (*scale, *(None,) * len(matrix.shape))
        matrix = PartitionSpec(*(entry if n > 1 else None for entry, n in zip(entries, matrix.shape, strict=False)))
    return replace(stored, payload=payload, scale=scale, matrix=matrix)


def _block(form: Format, shape: tuple[int, ...], inputs: int, runs: int) -> tuple[int, ...]:
    """Values that share a scale along each dimension."""
    if len(shape) <= inputs:
        raise ShapeError(
            f"{form.name}: a weight {shape} has no output beside its {inputs} dimensions of input: keep it plain"
        )
    output = len(shape) - inputs - 1
    block = [1] * len(shape)
    block[output] = math.gcd(form.block, shape[output] // runs) if runs > 1 else form.block
    block[-1] = form.block if form.block > 1 else int(_CODECS[form.name].width / form.scale)
    return tuple(block)


def _matrix(largest: Array, codec: _Codec, inputs: int) -> Array:
    """Scale of each matrix that brings the largest scale of its groups to the largest e4m3."""
    over = tuple(range(largest.ndim - inputs - 1, largest.ndim))
    whole = largest.max(axis=over, keepdims=True)
    return jnp.where(whole > 0, whole / (codec.largest * _E4M3_LARGEST), 1.0)


def _largest(sizes: Array, block: tuple[int, ...]) -> Array:
    """The largest value of each block."""
    counts = [-(-size // b) for size, b in zip(sizes.shape, block, strict=True)]
    padding = [(0, n * b - size) for size, n, b in zip(sizes.shape, counts, block, strict=True)]
    split = [entry for pair in zip(counts, block, strict=True) for entry in pair]
    return jnp.pad(sizes, padding).reshape(split).max(axis=tuple(range(1, 2 * len(block), 2)))


def _spread(scale: Array, block: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Each scale for every value of its block."""
    for axis, (b, size) in enumerate(zip(block, shape, strict=True)):
        if b > 1:
            scale = jax.lax.slice_in_dim(jnp.repeat(scale, b, axis=axis), 0, size, axis=axis)
    return scale
