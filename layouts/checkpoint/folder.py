"""A folder of weights as Hugging Face saves it: one safetensors file, or several and an index of them.

Boxes are read with `np.memmap` over the bytes that the header names, for every dtype alike: safetensors' own numpy
reader knows no fp8, and keeps the pages of a file mapped until it is closed. Here a run of rows is mapped at a time, so
that a box cut across the rows of a large tensor does not count the tensor as resident.
"""

import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from layouts.checkpoint.errors import CheckpointError
from layouts.checkpoint.header import Entry, read_header
from layouts.checkpoint.views import Box, lengths

_ONE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_SHOWN: Final = 10
_MAPPED: Final = 1 << 24  # bytes of a file that are mapped at a time, or one row where that is longer


@dataclass(frozen=True)
class Folder:
    """The tensors of a folder, by name."""

    path: pathlib.Path
    entries: Mapping[str, Entry]

    def read(self, name: str, box: Box) -> np.ndarray:
        """A copy of a box of a tensor."""
        entry = self.entries[name]
        out = np.empty(lengths(box), entry.dtype)
        if not out.size:
            return out
        # a scalar is a row of one
        shape, cuts, rows = entry.shape or (1,), box or (slice(0, 1),), out.reshape(out.shape or (1,))
        size, at = math.prod(shape[1:]), cuts[0].start
        step = max(1, _MAPPED // (size * entry.dtype.itemsize))
        for first in range(at, cuts[0].stop, step):
            count = min(step, cuts[0].stop - first)
            start, end = (entry.start + row * size * entry.dtype.itemsize for row in (first, first + count))
            mapped = np.memmap(entry.file, np.uint8, "r", start, (end - start,)).view(entry.dtype)
            rows[first - at : first - at + count] = mapped.reshape(count, *shape[1:])[(slice(None), *cuts[1:])]
        return out

    def dtype(self, name: str) -> np.dtype:
        """In which a tensor is stored."""
        return self.entries[name].dtype


def open_folder(path: str | pathlib.Path) -> Folder:
    """The weights of a folder, every header checked and nothing read. Raises CheckpointError."""
    folder = pathlib.Path(path)
    if (folder / _ONE).is_file():
        return Folder(folder, read_header(folder / _ONE))
    if not (folder / _INDEX).is_file():
        raise CheckpointError(f"{folder}: holds neither {_ONE} nor {_INDEX}; give the folder of a model's weights")
    index = _read_index(folder / _INDEX)
    files = sorted(set(index.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(f"{folder / _INDEX}: files are missing: {listed(missing)}; download them")
    entries: dict[str, Entry] = {}
    for file in files:
        held = read_header(folder / file)
        _check_shard(folder / _INDEX, file, held, index)
        entries |= held
    return Folder(folder, entries)


def listed(names: list[str]) -> str:
    """Names in a row, ten of them at most and a count of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read_index(path: pathlib.Path) -> dict[str, str]:
    """File of every tensor; only files of the folder itself."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON ({str(error).splitlines()[0]}); download it again") from None
    index = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(index, dict) or not index:
        raise CheckpointError(f"{path}: has no 'weight_map' from tensors to files; download it again")
    for name, file in index.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or set(file) & set("/\\\0"):
            raise CheckpointError(f"{path}: puts {name!r} in {file!r}; only *.safetensors of the same folder are read")
    return index


def _check_shard(index_path: pathlib.Path, file: str, held: Mapping[str, Entry], index: Mapping[str, str]) -> None:
    """A file holds the tensors that the index puts there, and no others."""
    for names, what in (
        (sorted(name for name, at in index.items() if at == file and name not in held), "lacks"),
        (sorted(name for name in held if index.get(name) != file), "holds, against the index,"),
    ):
        if names:
            raise CheckpointError(f"{index_path}: {file} {what} {listed(names)}; download both again")
