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
from jaxtyping import Array, Float, Int

from explorer.calibration.observed import CalibrationError, Observed
from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.machine import Machine
from hw.time import collective_seconds, compute_seconds
from hw.work import EXCHANGE_SHAPES, LAUNCHES, SHAPES, Collective, CollectiveKind, Family, Rate, Work

Word = TypeVar("Word", bound=StrEnum)
Row = Mapping[str, Any]
Op = tuple[Family | CollectiveKind, Rate | None, tuple[float, ...]]
Key = tuple[str, tuple[Op, ...]]

SCHEMA: Final = "measure/1"
# Two timings of one kernel lie a few per cent apart, and a curve misses a single shape by about as much.
ROW_WIDTH: Final = 0.05
_LABELS: Final = ("name", "seconds", "form", "date")
_TOGETHER: Final = "ops"  # of a row of several kernels
_KERNEL: Final = ("flops", "bytes", *SHAPES)
_EXCHANGE: Final = ("payload", "size", "stride", *EXCHANGE_SHAPES)
_ONE: Final = {"stride": 1.0, LAUNCHES: 1.0}  # where left out; all others are 0


class Rows(Observed):
    """Kernels, then exchanges, that were timed one by one, or several kernels together.

    `owner`: which observation each kernel of `work` is a part of; those of exchanges come after them, one each.
    """

    file: str = eqx.field(static=True)
    format: str = eqx.field(static=True)
    date: str = eqx.field(static=True)
    left_out: tuple[str, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    seconds: Float[np.ndarray, " observations"]
    widths: Float[np.ndarray, " observations"]
    owner: Int[np.ndarray, " kernels"]
    work: Work
    collective: Collective

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        ar = Exact()
        kernels = [self._by_row(compute_seconds(ar, machine, self.work))] if self.work.family else []
        exchanges = [collective_seconds(ar, machine, self.collective)] if self.collective.kind else []
        return jnp.concatenate([*kernels, *exchanges])

    def _by_row(self, seconds: Float[Array, " kernels"]) -> Float[Array, " timed"]:
        return jnp.zeros(len(self.names) - len(self.collective.kind)).at[self.owner].add(seconds)


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
    problems: dict[Key, list[float]] = {}
    for number, row in enumerate(listed):
        key, seconds = _read(row, f"{file}: row {number}")
        problems.setdefault(key, []).append(seconds)
    kernels = [(key, statistics.median(t)) for key, t in problems.items() if isinstance(key[1][0][0], Family)]
    exchanges = [(key, statistics.median(t)) for key, t in problems.items() if not isinstance(key[1][0][0], Family)]
    ordered = kernels + exchanges
    rows = Rows(
        file=file,
        format=SCHEMA,
        date=str(document.get("date") or "unknown"),
        left_out=(),
        names=tuple(key[0] for key, _ in ordered),
        seconds=np.array([t for _, t in ordered]),
        widths=np.full(len(ordered), ROW_WIDTH),
        owner=np.repeat(np.arange(len(kernels)), [len(key[1]) for key, _ in kernels]).astype(int),
        work=_work([op for key, _ in kernels for op in key[1]]),
        collective=_collective([op for key, _ in exchanges for op in key[1]]),
    )
    return chip, rows


def _read(row: Any, place: str) -> tuple[Key, float]:
    """What a row timed, under its label, and its seconds."""
    if not isinstance(row, dict) or len({"family", "kind", _TOGETHER} & row.keys()) != 1:
        raise CalibrationError(
            f"{place}: must be an object with either `family` (a kernel), `kind` (an exchange) or `{_TOGETHER}`"
        )
    ops = _ops(row, place)
    seconds = _number(row, "seconds", place)
    if not seconds > 0:
        raise CalibrationError(f"{place}: seconds = {seconds:g}: must be above 0")
    label = row.get("name") or " + ".join(".".join(map(str, filter(None, op[:2]))) for op in ops)
    return (str(label), ops), seconds


def _ops(row: Row, place: str) -> tuple[Op, ...]:
    """The kernel or exchange of a row, or the kernels that it lists."""
    if _TOGETHER not in row:
        return (_op(row, place, _LABELS),)
    listed = row[_TOGETHER]
    _known(row, (*_LABELS, _TOGETHER), place)
    if not isinstance(listed, list) or not listed or not all(isinstance(o, dict) and "family" in o for o in listed):
        raise CalibrationError(f"{place}: `{_TOGETHER}` must list at least one kernel, each with its `family`")
    return tuple(_op(op, f"{place}, op {number}", ()) for number, op in enumerate(listed))


def _op(row: Row, place: str, labels: tuple[str, ...]) -> Op:
    kernel = "family" in row
    columns = _KERNEL if kernel else _EXCHANGE
    _known(row, (*labels, *(("family", "rate") if kernel else ("kind",)), *columns), place)
    numbers = tuple(_number(row, name, place) for name in columns)
    if kernel:
        if not numbers[0] + numbers[1] > 0:
            raise CalibrationError(f"{place}: flops and bytes are both 0: a kernel has work to do")
        return _word(row, "family", Family, place), _word(row, "rate", Rate, place), numbers
    if not numbers[0] > 0 or numbers[1] < 2 or numbers[2] < 1:
        raise CalibrationError(f"{place}: payload must be above 0, size at least 2 ranks, stride at least 1")
    return _word(row, "kind", CollectiveKind, place), None, numbers


def _known(row: Row, known: tuple[str, ...], place: str) -> None:
    if unknown := sorted(set(row) - set(known)):
        raise CalibrationError(f"{place}: unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")


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


def _work(ops: Sequence[Op]) -> Work:
    columns = _columns(ops, len(_KERNEL))
    shapes = dict(zip(SHAPES, columns[2:], strict=True))
    families = [op[0] for op in ops if isinstance(op[0], Family)]
    return Work.of(families, [op[1] for op in ops if op[1] is not None], columns[0], columns[1], **shapes)


def _collective(ops: Sequence[Op]) -> Collective:
    return Collective.of([op[0] for op in ops if isinstance(op[0], CollectiveKind)], *_columns(ops, len(_EXCHANGE)))


def _columns(ops: Sequence[Op], count: int) -> Float[np.ndarray, "columns rows"]:
    return np.array([op[2] for op in ops], np.float64).reshape(-1, count).T
