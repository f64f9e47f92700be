"""A file of results as runs: the one reader, for `bench` and `calibrate`."""

import pathlib
from dataclasses import dataclass
from typing import Final

from explorer.engines.bench.clients import run_of
from explorer.engines.bench.fields import Unusable
from explorer.engines.bench.run import Run
from explorer.engines.bench.values import BenchError, values

MOST_RUNS: Final = 1024
_MOST_LEFT_OUT: Final = 1024


@dataclass(frozen=True)
class LeftOut:
    """A value of a file that is no run: `index` among its values, line, and why."""

    index: int
    line: int
    reason: str


@dataclass(frozen=True)
class Results:
    """The runs of a file in order, and what is none."""

    path: pathlib.Path
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


def read_results(path: str | pathlib.Path) -> Results:
    """Every run that can be read of a file, and why the others cannot.

    Raises BenchError for a file that cannot be read, that is no JSON throughout, or that holds more runs than
    `MOST_RUNS`.
    """
    file = pathlib.Path(path).expanduser()
    runs, left_out, read = list[Run](), list[LeftOut](), 0
    for index, found in enumerate(values(file)):
        try:
            if found.reason is not None:
                raise Unusable(found.reason)
            read += 1
            runs.append(run_of(found.value, index, found.line))
        except Unusable as reason:
            left_out.append(LeftOut(index, found.line, str(reason)))
        if len(runs) > MOST_RUNS or len(left_out) > _MOST_LEFT_OUT:
            raise BenchError(f"{file.name} holds more than {MOST_RUNS} values: split it, and give a part")
    if not read:
        why = f"line {left_out[0].line} {left_out[0].reason}" if left_out else "it is empty: give a benchmark's results"
        raise BenchError(f"{file.name} is no JSON: {why}")
    return Results(file, tuple(runs), tuple(left_out))
