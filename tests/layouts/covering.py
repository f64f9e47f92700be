"""A few layouts in place of thousands: every value of every key for each model and every pair of values among them all;
or one of each tuple of degrees."""

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
DEGREES, CHOICES = KEYS[:8], KEYS[8:]
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
    table = _table(space, KEYS)
    singles, pairs = _combinations(table, 1), _combinations(table, 2) - seen
    chosen: list[Layout] = []
    while singles or (every_pair and pairs):
        row = int(np.argmax(1000 * _new(table, singles) + _new(table, pairs)))
        singles -= _combinations(table[row : row + 1], 1)
        pairs -= _combinations(table[row : row + 1], 2)
        chosen.append(space.layout(row))
    seen |= _combinations(table, 2) - pairs
    return chosen


def every_cut(model: Model, gpus: int) -> list[Layout]:
    """A layout of every valid tuple of degrees, with those of its alternatives that had the fewest turns before."""
    space = every_layout(model, gpus)
    _, of = np.unique(_table(space, DEGREES), axis=0, return_inverse=True)
    alternatives = _table(space, CHOICES)
    turns, chosen = np.zeros((len(CHOICES), alternatives.max() + 1), int), []
    for cut in range(of.max() + 1):
        rows = np.flatnonzero(of == cut)
        had = turns[np.arange(len(CHOICES)), alternatives[rows]]
        row = rows[np.argmin(had.sum(axis=1))]
        turns[np.arange(len(CHOICES)), alternatives[row]] += 1
        chosen.append(space.layout(int(row)))
    return chosen


def most_cut(model: Model, gpus: int) -> Layout:
    """The layout in which the most keys differ from one."""
    space = every_layout(model, gpus)
    return space.layout(int(np.argmax((_table(space, KEYS) > 1).sum(axis=1))))


def _table(space: Space, keys: Iterable[str]) -> np.ndarray:
    return np.stack([space.columns[key] for key in keys], axis=1)


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
