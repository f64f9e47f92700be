"""A file of whatever kind as observations: told apart by what it holds."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from explorer.calibration.factors import base_of
from explorer.calibration.measured import SCHEMA, read_measured
from explorer.calibration.observed import CalibrationError, Observed
from explorer.calibration.served import read_served
from explorer.calibration.traced import traced_step
from explorer.request import Request
from explorer.traces.reading import read_trace
from hw.figures import chip_of
from hw.machine import Machine
from layouts.layout import Layout

_HEAD = 1 << 20  # bytes in which a document says what it is
_SERVED = (b'_tpot_ms"', b'"total_output_tokens"')  # the latter stands before the times of every request


@dataclass(frozen=True)
class Ran:
    """What ran while it was recorded: by which engine, where the results of a benchmark do not say; and where in a
    trace to look for it."""

    request: Request
    layout: Layout
    engine: str | None = None
    layer_patterns: tuple[str, ...] = ()
    step_pattern: str | None = None
    device: int | None = None


def read_source(path: str | pathlib.Path, machine: Machine, ran: Ran | None = None) -> Sequence[Observed]:
    """The observations of a file. `machine`: the one that is calibrated; `ran` is needed for a
    trace and for the results of a benchmark.

    Raises MeshwrightError with one line for a file that cannot be read, is of another chip, or needs to be told what
    ran.
    """
    file = pathlib.Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError as error:
        raise CalibrationError(
            f"from {str(path)!r}: cannot be read ({error.strerror}): give a {SCHEMA} document, a trace, or results "
            "of a benchmark"
        ) from None
    if f'"{SCHEMA}"'.encode() in head and b'"traceEvents"' not in head:
        measured, rows = read_measured(file)
        chip = chip_of(base_of(machine)[0])
        if chip_of(measured) != chip:
            raise CalibrationError(
                f"{file.name} was measured on {measured!r}, not on {chip!r}: name that as --hardware"
            )
        return [rows]
    if ran is None:
        raise CalibrationError(
            f"{file.name} is a recording: --model, --gpus and --layout must say what ran ({SCHEMA} needs none)"
        )
    if file.suffix == ".jsonl" or (any(mark in head for mark in _SERVED) and b'"traceEvents"' not in head):
        return read_served(file, ran.request, ran.layout, ran.engine)
    where = (ran.device, ran.layer_patterns, ran.step_pattern)
    return [traced_step(file, read_trace(file), ran.request, ran.layout, *where)]
