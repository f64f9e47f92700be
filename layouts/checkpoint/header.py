"""The header of a safetensors file: which tensors it holds, in which dtype, at which bytes.

Layout of a file (format description of huggingface/safetensors): eight bytes with the header's length, little-endian;
the header, a JSON object of name -> dtype, shape, data_offsets; then the data, without holes. It is checked here in
full, so that a damaged file is an error with a name before anything is read or compiled.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeGuard

import ml_dtypes
import numpy as np

from layouts.checkpoint.errors import CheckpointError

LARGEST_HEADER: Final = 100_000_000  # bytes; the limit of the safetensors library itself
_AGAIN: Final = "download or save the file again"
DTYPES: Final[Mapping[str, np.dtype]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "U8": np.dtype(np.uint8),
        "I8": np.dtype(np.int8),
        "U16": np.dtype("<u2"),
        "I16": np.dtype("<i2"),
        "U32": np.dtype("<u4"),
        "I32": np.dtype("<i4"),
        "U64": np.dtype("<u8"),
        "I64": np.dtype("<i8"),
        "F16": np.dtype("<f2"),
        "F32": np.dtype("<f4"),
        "F64": np.dtype("<f8"),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    }
)


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its bytes are [start, start + size of shape and dtype) of the file, row-major."""

    file: pathlib.Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int


def read_header(file: pathlib.Path) -> dict[str, Entry]:
    """Every tensor of the file by name. Raises CheckpointError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(size - 8, LARGEST_HEADER):
                raise CheckpointError(f"{file}: {size} bytes hold no safetensors header of {length}; {_AGAIN}")
            text = opened.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({os.strerror(error.errno or 0)}); {_AGAIN}") from None
    values = _object(file, text)
    values.pop("__metadata__", None)
    spans = {name: _checked(file, name, value) for name, value in values.items()}
    _check_data(file, spans, size - 8 - length)
    return {name: Entry(file, dtype, shape, 8 + length + start) for name, (dtype, shape, start) in spans.items()}


def _object(file: pathlib.Path, text: bytes) -> dict[str, object]:
    """The JSON object of a header, in which no name may stand twice."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a name stands twice")
        return made

    try:
        values = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: its header is no JSON ({str(error).splitlines()[0]}); {_AGAIN}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: its header is a JSON {type(values).__name__}, not an object; {_AGAIN}")
    return values


def _checked(file: pathlib.Path, name: str, value: object) -> tuple[np.dtype, tuple[int, ...], int]:
    """(dtype, shape, first byte in the data) of one entry."""
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{file}: tensor {name!r} is described by no object; {_AGAIN}")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{file}: tensor {name!r} has dtype {dtype!r}; supported: {', '.join(DTYPES)}")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{file}: tensor {name!r} has a shape or data_offsets that are no sizes; {_AGAIN}")
    start, end = offsets
    if end - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise CheckpointError(f"{file}: tensor {name!r} has {end - start} bytes for {dtype} {list(shape)}; {_AGAIN}")
    return DTYPES[dtype], tuple(shape), start


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value)


def _check_data(file: pathlib.Path, spans: Mapping[str, tuple[np.dtype, tuple[int, ...], int]], size: int) -> None:
    """The tensors follow one another without hole or overlap and end where the file ends."""
    at = 0
    for name, (dtype, shape, start) in sorted(spans.items(), key=lambda item: (item[1][2], math.prod(item[1][1]))):
        if start != at:
            raise CheckpointError(f"{file}: tensor {name!r} starts at byte {start} of the data, not at {at}; {_AGAIN}")
        at += math.prod(shape) * dtype.itemsize
    if at != size:
        raise CheckpointError(f"{file}: its header describes {at} bytes of data, the file holds {size}; {_AGAIN}")
