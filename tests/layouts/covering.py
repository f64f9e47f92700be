"""A few layouts in place of thousands: every value of every key for each model, every pair of values among them all."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

import numpy as np

from layouts.enumerate import Space, enumerate_layouts
from layouts.layout import Layout
from layouts.models import Model
from layouts.rules import Site

KEYS = (
    "replicas", "pp", "attn_dp", "attn_tp", "dcp", "ep", "expert_tp", "moe_dp", "weight_shard", "vocab_tp",
    "dcp_backend", "dispatch",
)  # fmt: skip
DEGREES = KEYS[:8]
Values = tuple[int, ...]  # of one key, or of two
Set = set[tuple[Values, Values]]  # (columns of KEYS, their values)


def every_layout(model: Model, gpus: int) -> Space:
    """All of a model on so many GPUs, in one domain of hosts of eight: no alternative is out."""
    found = enumerate_layouts(Site(model, gpus, 8, 16))
    assert found is not None
    return found


def covering(model: Model, gpus: int, seen: Set, every_pair: bool = False) -> list[Layout]:
    """Layouts that between them have every value of every key, each chosen for the pairs of values that it adds to
    `seen`; with `every_pair` until the model has no pair left to add."""
    space = every_layout(model, gpus)
    table = np.stack([space.columns[key] for key in KEYS], axis=1)
    singles, pairs = _combinations(table, 1), _combinations(table, 2) - seen
    chosen: list[Layout] = []
    while singles or (every_pair and pairs):
        row = int(np.argmax(1000 * _new(table, singles) + _new(table, pairs)))
        singles -= _combinations(table[row : row + 1], 1)
        pairs -= _combinations(table[row : row + 1], 2)
        chosen.append(space.layout(row))
    seen |= _combinations(table, 2) - pairs
    return chosen


def _combinations(table: np.ndarray, size: int) -> Set:
    """Every combination of values of `size` keys that stands in some row."""
    return {
        (columns, tuple(map(int, values)))
        for columns in combinations(range(table.shape[1]), size)
        for values in np.unique(table[:, columns], axis=0)
    }


def _new(table: np.ndarray, wanted: Iterable[tuple[Values, Values]]) -> np.ndarray:
    """How many of the wanted combinations each row has."""
    by_columns: dict[Values, list[Values]] = defaultdict(list)
    for columns, values in wanted:
        by_columns[columns].append(values)
    found = np.zeros(len(table), int)
    for columns, values in by_columns.items():
        found += (table[:, columns][:, None] == np.array(values)[None]).all(axis=2).sum(axis=1)
    return found
