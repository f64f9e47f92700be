"""Rows of a shipped table, and an op of the layouts priced on all of them at once."""

import csv
import gzip
from collections.abc import Mapping, Sequence
from importlib import resources

import numpy as np
from jaxtyping import Float

from layouts.expression import Expr
from layouts.op import Op

Column = Float[np.ndarray, " rows"]


def read(name: str) -> list[dict[str, str]]:
    """The rows of `experiments/data/measurements/<name>.csv.gz`, in the order of the file."""
    path = resources.files("experiments") / "data" / "measurements" / f"{name}.csv.gz"
    with path.open("rb") as file:
        return list(csv.DictReader(gzip.decompress(file.read()).decode().splitlines()))


def numbers(rows: Sequence[Mapping[str, str]], name: str) -> Column:
    """One column as numbers."""
    return np.array([float(row[name]) for row in rows])


def evaluate(expression: Expr, values: Mapping[str, Column | float]) -> Column | float:
    """An expression over columns of its quantities; a missing quantity is a KeyError."""
    total: Column | float = 0.0
    for powers, coefficient in expression.terms:
        term: Column | float = float(coefficient)
        for name, power in powers:
            term = term * np.asarray(values[name], dtype=float) ** power
        total = total + term
    return total


def named(ops: Sequence[Op], name: str) -> Op:
    """The one op of this name."""
    (op,) = (op for op in ops if op.name == name)
    return op


def shapes(*columns: Column) -> np.ndarray:
    """The number of each row's problem: equal rows have one number."""
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
