"""What was measured on the machine that is calibrated, and what a machine predicts for it."""

import abc
import datetime
import pathlib

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from hw.errors import MeshwrightError
from hw.machine import Machine


class CalibrationError(MeshwrightError):
    """A source of observations that cannot be used."""


class Observed(eqx.Module):
    """Quantities of one file: their names, seconds, and how far a right prediction may lie off (sd of the logarithm).

    `format` says what the file is, `date` when it was recorded; `left_out` what of it was not used, and why.
    """

    file: eqx.AbstractVar[str]
    format: eqx.AbstractVar[str]
    date: eqx.AbstractVar[str]
    left_out: eqx.AbstractVar[tuple[str, ...]]
    names: eqx.AbstractVar[tuple[str, ...]]
    seconds: eqx.AbstractVar[Float[np.ndarray, " observations"]]
    widths: eqx.AbstractVar[Float[np.ndarray, " observations"]]

    @abc.abstractmethod
    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        """Seconds of each quantity. `overhead`: factor on the engine's own work in a step, where there is an engine."""


def file_date(path: pathlib.Path) -> str:
    """The day on which a file was written, for sources that do not say when they were recorded."""
    return datetime.date.fromtimestamp(path.stat().st_mtime).isoformat() if path.exists() else "unknown"
