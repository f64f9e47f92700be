"""A small folder of op tables with times of a known form, written for a test."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

Rows = Sequence[Mapping[str, Any]]


def write(folder: pathlib.Path, place: str, rows: Rows) -> pathlib.Path:
    """A parquet file of rows at `place` (board/table/engine/version/file) under a `systems/data`."""
    reason = "reading op tables needs pyarrow (the extra `tables`)"
    arrow, parquet = (pytest.importorskip(module, reason=reason) for module in ("pyarrow", "pyarrow.parquet"))
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def gemm_rows(dtype: str, milliseconds: float, ms: Sequence[int], ns: Sequence[int], ks: Sequence[int]) -> Rows:
    """Dense products that take `milliseconds` for each m x n x k of 2^30."""
    return [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": milliseconds * m * n * k / 2**30}
        for m in ms
        for n in ns
        for k in ks
    ]
