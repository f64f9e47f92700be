"""Which tensors of a folder a program has asked for, and everything that is wrong with them, in one error."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np

from layouts.checkpoint.errors import CheckpointError
from layouts.checkpoint.folder import Folder, listed
from layouts.checkpoint.scaled import E2M1, E8M0, Scaled
from layouts.checkpoint.views import Merged, Stored, View, flat
from layouts.tensor import FORMATS

_BLOCK: Final = FORMATS["fp8"].block
_GROUP: Final = int(1 / FORMATS["mxfp4"].scale)  # one byte for so many values
_BYTE: Final = np.dtype(np.uint8)
_FP8: Final = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
_CONVERT: Final = "only bf16, fp16, fp32, fp8 in blocks of 128 and MXFP4 are loaded: convert the weights to one of them"
# How quantised weights show in names, and what they are called there.
_QUANTISED: Final = (
    (re.compile(r"\.weight_scale_inv$"), "fp8 in blocks"),
    (re.compile(r"\.\w+_proj_(blocks|scales)$"), "MXFP4 in blocks"),
    (re.compile(r"\.weight_packed$"), "packed int4 or FP4"),
    (re.compile(r"\.(weight_scale|weight_scale_2|input_scale)$"), "scaled fp8 or FP4"),
    (re.compile(r"\.(qweight|qzeros|g_idx)$"), "packed integers"),
)


@dataclass
class Claims:
    """Tensors of a folder that have been asked for. Whoever asks gets a view at once; `check` tells what was wrong."""

    folder: Folder
    claimed: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether the folder has a tensor of the name."""
        return name in self.folder.entries

    def tensor(self, name: str, shape: tuple[int, ...]) -> View:
        """The tensor of the name, which must have the shape; its values where it is stored as fp8 in blocks with
        `weight_scale_inv` (DeepSeek-V3) or in MXFP4 (compressed-tensors' mxfp4-pack-quantized)."""
        if self.has(f"{name}_scale_inv"):
            scale = self._exact(f"{name}_scale_inv", tuple(-(-size // _BLOCK) for size in shape))
            return Scaled(self._exact(name, shape), scale, (_BLOCK,) * len(shape))
        if self._is_mxfp4(name):
            packed, scale = f"{name}_packed", f"{name}_scale"
            return self._mxfp4(self._exact(packed, (*shape[:-1], shape[-1] // 2)), scale, shape)
        entry = self.folder.entries.get(name)
        if entry is not None and entry.dtype in _FP8:
            raise CheckpointError(
                f"{self.folder.path}: {name} is {entry.dtype} without scales of 128 x 128 blocks; {_CONVERT}"
            )
        return self._exact(name, shape)

    def blocks(self, name: str, shape: tuple[int, ...]) -> View | None:
        """The values of `name_blocks` and `name_scales`, MXFP4 as gpt-oss stores it: (..., groups, bytes of a group).
        None where the folder does not have them."""
        if not self.has(f"{name}_blocks"):
            return None
        groups = (*shape[:-1], shape[-1] // _GROUP, _GROUP // 2)
        return self._mxfp4(Merged(self._exact(f"{name}_blocks", groups), len(shape) - 1), f"{name}_scales", shape)

    def _mxfp4(self, packed: View, scale: str, shape: tuple[int, ...]) -> View:
        exponents = self._exact(scale, (*shape[:-1], -(-shape[-1] // _GROUP)))
        return Scaled(E2M1(packed), E8M0(exponents), (*(1 for _ in shape[1:]), _GROUP))

    def _is_mxfp4(self, name: str) -> bool:
        """NVFP4 and int4 have tensors of the same names, in other dtypes."""
        parts = [self.folder.entries.get(f"{name}_{part}") for part in ("packed", "scale")]
        return all(part is not None and part.dtype == _BYTE for part in parts)

    def _exact(self, name: str, shape: tuple[int, ...]) -> View:
        return self._claim(name, shape, lambda found: found == shape)

    def vector(self, name: str, size: int) -> View:
        """The tensor of the name as one dimension, whichever others of size one it is stored with."""
        return flat(self._claim(name, (size,), lambda found: math.prod(found) == size))

    def _claim(self, name: str, shape: tuple[int, ...], fits: Callable[[tuple[int, ...]], bool]) -> View:
        entry = self.folder.entries.get(name)
        if entry is None:
            self.missing.append(name)
            return Stored(self.folder, name, shape)
        self.claimed.add(name)
        if fits(entry.shape):
            return Stored(self.folder, name, entry.shape)
        self.misshaped.append(f"{name} {list(entry.shape)} for {list(shape)}")
        return Stored(self.folder, name, shape)

    def check(self, ignored: Callable[[str], bool]) -> None:
        """Raise CheckpointError unless what was asked for is there and everything else is to be ignored."""
        others = [name for name in self.folder.entries if name not in self.claimed and not ignored(name)]
        refuse_quantised(self.folder, others)
        problems = [
            f"{what} {len(names)}: {listed(names)}"
            for what, names in (("missing", self.missing), ("mis-shaped", self.misshaped), ("unknown", others))
            if names
        ]
        if problems:
            raise CheckpointError(
                f"{self.folder.path}: tensors {'; '.join(problems)}; give the weights that belong to the config"
            )


def refuse_quantised(folder: Folder, unclaimed: Sequence[str]) -> None:
    """Raise CheckpointError where tensors that nothing asked for are parts of quantised weights."""
    for pattern, kind in _QUANTISED:
        found = [name for name in unclaimed if pattern.search(name)]
        if found:
            raise CheckpointError(
                f"{folder.path}: weights are quantised, {kind} ({found[0]}, {len(found)} such tensors); {_CONVERT}"
            )
