"""What a block of the kernel takes in a step, by its query rows: as measured, cut down to what shared memory holds."""

import functools
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from layouts.kernels import SHARED_BYTES

_FEWEST: Final = 16  # tokens that a product of the tensor cores takes
_MANY: Final = 64  # rows from which on a product reads both operands from shared memory
_COMPUTED: Final = 2  # bytes of the values that are multiplied, at least
_WIDE: Final = 256  # values of a key above which the sums of a block fill the registers
_MOST_BLOCKS: Final = 4  # that run on one at a time: more gain nothing


class Step(NamedTuple):
    """Tokens of a step, warps of a block, steps in flight, and blocks that a multiprocessor runs at a time."""

    tokens: int
    warps: int
    stages: int
    at_once: int


@functools.cache
def steps_of(key: int, values: int, item: int) -> Mapping[int, Step]:
    """By the rows of a block, of those that there are: for keys of `key` values and `values` of `item` bytes that are
    read of a token."""
    entries = _measured()["wide" if key > _WIDE else "narrow"]
    return {entry["rows"]: _fitted(entry, key, values, item) for entry in entries}


def _fitted(entry: Mapping[str, int], key: int, values: int, item: int) -> Step:
    rows, tokens, stages = entry["rows"], entry["tokens"], entry["stages"]

    def shared(tokens: int) -> int:
        """Bytes of a block, about: the backend keeps queries twice, a step less than it has in flight, and what it
        converts once more where products of many rows read it from here."""
        converted = _COMPUTED * tokens * values if item < _COMPUTED and rows >= _MANY else 0
        return 2 * max(item, _COMPUTED) * rows * key + item * (stages - 1) * tokens * values + converted

    while shared(tokens) > SHARED_BYTES and tokens > _FEWEST:
        tokens //= 2
    return Step(tokens, entry["warps"], stages, min(max(SHARED_BYTES // shared(tokens), 1), _MOST_BLOCKS))


@functools.cache
def _measured() -> Mapping[str, Any]:
    return tomllib.loads(pathlib.Path(__file__).with_name("steps.toml").read_text(encoding="utf-8"))
