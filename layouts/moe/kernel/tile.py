"""What a program of the grouped GEMM works on at a time, as measured to be fastest for so many rows an expert."""

import functools
import math
import pathlib
import tomllib
from typing import Final, NamedTuple

from layouts.shapes import ShapeError

_FEWEST: Final = 16  # values of a side that a product of the tensor cores takes


class Tile(NamedTuple):
    """`rows` of an expert and `columns` of its output (of gate and up each, where these are one weight), over `inputs`
    at a time, of which `stages` are on their way; `warps` of a program, and programs on a multiprocessor."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int
    programs: int

    def fitted(self, columns: int, inputs: int) -> "Tile":
        """The same cut down to what divides a weight; ShapeError where that is less than a product takes."""
        fitted = self._replace(columns=_divisor(columns, self.columns), inputs=_divisor(inputs, self.inputs))
        if min(fitted.columns, fitted.inputs) < _FEWEST:
            raise ShapeError(
                f"grouped GEMM: weights of {columns} x {inputs} are not whole tiles of {_FEWEST}: use another form"
            )
        return fitted


def tile_of(kind: str, rows: float) -> Tile:
    """The tile of `tiles.toml` for a kind of product and the mean rows of an expert."""
    entries = _measured()[kind]
    return next(tile for most, tile in entries if rows <= most)


@functools.cache
def _measured() -> dict[str, tuple[tuple[float, Tile], ...]]:
    document = tomllib.loads(pathlib.Path(__file__).with_name("tiles.toml").read_text(encoding="utf-8"))
    return {
        kind: tuple((entry.get("most_rows", math.inf), Tile(*(entry[name] for name in Tile._fields))) for entry in rows)
        for kind, rows in document.items()
    }


def _divisor(size: int, most: int) -> int:
    """The largest power of two that divides, up to one."""
    return min(size & -size, most)
