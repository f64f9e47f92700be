"""Which tensors of a folder a program has asked for, and everything that is wrong with them, in one error."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from layouts.checkpoint.errors import CheckpointError
from layouts.checkpoint.folder import Folder, listed
from layouts.checkpoint.views import Stored, View, flat

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
        """The tensor of the name, which must have the shape."""
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
                f"{folder.path}: weights are quantised, {kind} ({found[0]}, {len(found)} such tensors); "
                "only bf16, fp16 and fp32 are loaded: convert the weights to one of them"
            )
