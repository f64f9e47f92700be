"""Views of quantised tensors: their values, worked out in float32 for the box that is read."""

from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np

from layouts.checkpoint.views import Box, OfOne, View

_FLOAT32: Final = np.dtype(np.float32)
# Values of the sixteen codes (OCP Microscaling Formats 1.0, table 5).
_E2M1: Final = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(_FLOAT32)


@dataclass(frozen=True)
class E2M1(OfOne):
    """A view of bytes as values of four bits, two to a byte along the last dimension, the first in the low half."""

    @property
    def shape(self) -> tuple[int, ...]:
        *rest, last = self.view.shape
        return (*rest, 2 * last)

    @property
    def dtype(self) -> np.dtype:
        return _FLOAT32

    def read(self, box: Box) -> np.ndarray:
        start, stop = box[-1].start, box[-1].stop
        packed = self.view.read((*box[:-1], slice(start // 2, -(-stop // 2))))
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
        return _E2M1[codes[..., start % 2 : start % 2 + stop - start]]


@dataclass(frozen=True)
class E8M0(OfOne):
    """A view of bytes as the powers of two that they are exponents of, above 2^-127."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> np.dtype:
        return _FLOAT32

    def read(self, box: Box) -> np.ndarray:
        return self.view.read(box).view(ml_dtypes.float8_e8m0fnu).astype(_FLOAT32)


@dataclass(frozen=True)
class Scaled(OfOne):
    """The view times a scale for each block of `block` entries along each dimension, those at the end ragged."""

    scale: View
    block: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> np.dtype:
        return _FLOAT32

    def read(self, box: Box) -> np.ndarray:
        of_blocks = tuple(slice(c.start // b, -(-c.stop // b)) for c, b in zip(box, self.block, strict=True))
        scale = self.scale.read(of_blocks).astype(_FLOAT32)
        for axis, (cut, b) in enumerate(zip(box, self.block, strict=True)):
            scale = scale.take(np.arange(cut.start, cut.stop) // b - cut.start // b, axis=axis)
        return self.view.read(box).astype(_FLOAT32) * scale

    def names(self) -> tuple[str, ...]:
        return (*self.view.names(), *self.scale.names())
