"""How the kernel is cut for given shapes: rows and tokens of a block, and pieces that fill the multiprocessors.

What a step takes stands in `steps.toml`.
"""

import functools
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax.numpy as jnp

from layouts.paged.block import Entry, Tiling
from layouts.paged.splits import split_count

_FEWEST: Final = 16  # rows and tokens that a product of the tensor cores takes
_MANY: Final = 64  # rows from which on a product reads both operands from shared memory
_COMPUTED: Final = 2  # bytes of the values that are multiplied, at least
_WIDE: Final = 256  # values of a key above which the sums of a block fill the registers
_SHARED: Final = 227 * 1024  # bytes of shared memory of a multiprocessor
_MOST_BLOCKS: Final = 4  # that run on one at a time: more gain nothing


class _Step(NamedTuple):
    """Tokens of a step, warps of a block, and steps in flight."""

    tokens: int
    warps: int
    stages: int


def tiling_of(query: tuple[int, ...], pool: Any, entry: Entry, tokens: int, multiprocessors: int) -> Tiling:
    """The cut for queries (requests, verify, heads, key) over `tokens` tokens a request at most."""
    requests, verify, heads, _ = query
    kv_heads, item = pool.shape[1], jnp.dtype(pool.dtype).itemsize
    group = verify * heads // kv_heads
    steps = _measured()["wide" if entry.key > _WIDE else "narrow"]
    rows = min(max(_FEWEST, 1 << (group - 1).bit_length()), max(steps))
    step = steps[rows]
    values = entry.key if entry.start + entry.width <= entry.key else entry.key + entry.width

    def shared(tokens: int) -> int:
        """Bytes of a block, about: the backend keeps queries twice, a step less than it has in flight, and what it
        converts once more where products of many rows read it from here."""
        converted = _COMPUTED * tokens * values if item < _COMPUTED and rows >= _MANY else 0
        in_flight = item * (step.stages - 1) * tokens * values
        return 2 * max(item, _COMPUTED) * rows * entry.key + in_flight + converted

    while shared(step.tokens) > _SHARED and step.tokens > _FEWEST:
        step = step._replace(tokens=step.tokens // 2)
    at_once = multiprocessors * min(max(_SHARED // shared(step.tokens), 1), _MOST_BLOCKS)
    blocks = requests * kv_heads * -(-group // rows)
    return Tiling(rows, step.tokens, split_count(blocks, -(-tokens // step.tokens), at_once), step.warps, step.stages)


@functools.cache
def _measured() -> Mapping[str, Mapping[int, _Step]]:
    """By the width of sums and the rows of a block."""
    document = tomllib.loads(pathlib.Path(__file__).with_name("steps.toml").read_text(encoding="utf-8"))
    return {
        kind: {entry["rows"]: _Step(*(entry[name] for name in _Step._fields)) for entry in entries}
        for kind, entries in document.items()
    }
