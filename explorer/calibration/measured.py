"""A `measure/1` document: kernels and exchanges timed one by one, in the words of `hw.work` (docs/json.md)."""

import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.calibration.observed import CalibrationError, Observed
from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.machine import Machine
from hw.time import collective_seconds, compute_seconds
from hw.work import EXCHANGE_SHAPES, SHAPES, Collective, CollectiveKind, Family, Rate, Work

Word = TypeVar("Word", bound=StrEnum)
Row = Mapping[str, Any]

SCHEMA: Final = "measure/1"
# Two timings of one kernel lie a few per cent apart, and a curve misses a single shape by about as much.
ROW_WIDTH: Final = 0.05
_LABELS: Final = ("name", "seconds")
_KERNEL: Final = ("flops", "bytes", *SHAPES)
_EXCHANGE: Final = ("payload", "size", "stride", *EXCHANGE_SHAPES)
_ONE: Final = {"stride": 1.0}  # where left out; all others are 0


class Rows(Observed):
    """Kernels, then exchanges, that were timed one by one."""

    file: str = eqx.field(static=True)
    format: str = eqx.field(static=True)
    date: str = eqx.field(static=True)
    left_out: tuple[str, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    seconds: Float[np.ndarray, " observations"]
    widths: Float[np.ndarray, " observations"]
    work: Work
    collective: Collective

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        ar = Exact()
        kernels = [compute_seconds(ar, machine, self.work)] if self.work.family else []
        exchanges = [collective_seconds(ar, machine, self.collective)] if self.collective.kind else []
        return jnp.concatenate([*kernels, *exchanges])


def read_measured(path: str | pathlib.Path) -> tuple[str, Rows]:
    """The chip that a document names, and its rows; those of one problem count once, with their median time.

    Raises CalibrationError with one line for what is no such document, and for a row that cannot be: its number, the
    rule, the remedy.
    """
    file = pathlib.Path(path).expanduser()
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CalibrationError(f"{file.name} cannot be read ({reason}): give a {SCHEMA} document") from None
    return rows_of(document, file.name)


@in_x64
def rows_of(document: Any, file: str) -> tuple[str, Rows]:
    """The same of a document that was read."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise CalibrationError(f"{file} is no {SCHEMA} document: its `schema` must say so")
    chip, listed = document.get("chip"), document.get("rows")
    if not isinstance(chip, str):
        raise CalibrationError(f"{file}: chip = {chip!r}: must name the chip that was measured, such as 'h200'")
    if not isinstance(listed, list) or not listed:
        raise CalibrationError(f"{file}: has no rows: `rows` must list at least one timed kernel or exchange")
    problems: dict[tuple[Any, ...], list[float]] = {}
    for number, row in enumerate(listed):
        key, seconds = _read(row, f"{file}: row {number}")
        problems.setdefault(key, []).append(seconds)
    kernels = [(key, statistics.median(t)) for key, t in problems.items() if isinstance(key[1], Family)]
    exchanges = [(key, statistics.median(t)) for key, t in problems.items() if not isinstance(key[1], Family)]
    ordered = kernels + exchanges
    rows = Rows(
        file=file,
        format=SCHEMA,
        date=str(document.get("date") or "unknown"),
        left_out=(),
        names=tuple(key[0] for key, _ in ordered),
        seconds=np.array([t for _, t in ordered]),
        widths=np.full(len(ordered), ROW_WIDTH),
        work=_work([key for key, _ in kernels]),
        collective=_collective([key for key, _ in exchanges]),
    )
    return chip, rows


def _read(row: Any, place: str) -> tuple[tuple[Any, ...], float]:
    """What a row timed (label, family and rate or kind, numbers), and its seconds."""
    if not isinstance(row, dict) or ("family" in row) == ("kind" in row):
        raise CalibrationError(f"{place}: must be an object with either `family` (a kernel) or `kind` (an exchange)")
    kernel = "family" in row
    columns = _KERNEL if kernel else _EXCHANGE
    words = ("family", "rate") if kernel else ("kind",)
    known = {*_LABELS, *words, *columns}
    if unknown := sorted(set(row) - known):
        raise CalibrationError(f"{place}: unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")
    numbers = tuple(_number(row, name, place) for name in columns)
    seconds = _number(row, "seconds", place)
    if not seconds > 0:
        raise CalibrationError(f"{place}: seconds = {seconds:g}: must be above 0")
    if kernel:
        owner = (_word(row, "family", Family, place), _word(row, "rate", Rate, place))
        if not numbers[0] + numbers[1] > 0:
            raise CalibrationError(f"{place}: flops and bytes are both 0: a kernel has work to do")
    else:
        owner = (_word(row, "kind", CollectiveKind, place), None)
        if not numbers[0] > 0 or numbers[1] < 2 or numbers[2] < 1:
            raise CalibrationError(f"{place}: payload must be above 0, size at least 2 ranks, stride at least 1")
    label = row.get("name") or ".".join(map(str, filter(None, owner)))
    return (str(label), *owner, *numbers), seconds


def _word(row: Row, name: str, words: type[Word], place: str) -> Word:
    try:
        return words(row.get(name))
    except ValueError:
        raise CalibrationError(f"{place}: {name} = {row.get(name)!r}: must be one of {', '.join(words)}") from None


def _number(row: Row, name: str, place: str) -> float:
    value = row.get(name, _ONE.get(name, 0.0))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise CalibrationError(f"{place}: {name} = {value!r}: must be a finite number, not below 0")
    return float(value)


def _work(keys: Sequence[tuple[Any, ...]]) -> Work:
    columns = _columns(keys, len(_KERNEL))
    shapes = dict(zip(SHAPES, columns[2:], strict=True))
    return Work.of([key[1] for key in keys], [key[2] for key in keys], columns[0], columns[1], **shapes)


def _collective(keys: Sequence[tuple[Any, ...]]) -> Collective:
    return Collective.of([key[1] for key in keys], *_columns(keys, len(_EXCHANGE)))


def _columns(keys: Sequence[tuple[Any, ...]], count: int) -> Float[np.ndarray, "columns rows"]:
    return np.array([key[3:] for key in keys], np.float64).reshape(-1, count).T
