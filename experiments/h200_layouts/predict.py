"""What the cost model says of every point: by the curves alone, and with constants fitted to a third of the points."""

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.h200_layouts.points import Point
from explorer.calibration.factors import FACTORS, prior_widths
from explorer.calibration.programs import Asked, adjusted_seconds, program_steps
from explorer.calibration.solve import Fit, solve
from explorer.request import PLAIN_BF16, Request, make_request, of_program
from layouts.models.scale import Scale, scaled_config
from layouts.text import parse


@dataclass(frozen=True)
class Constant:
    """One that the fit moved: a factor of the curves, its value, and by how many of its prior's sd it moved."""

    name: str
    factor: float
    pull: float
    told: float


@dataclass(frozen=True)
class Predicted:
    """Seconds of every point as measured, by the curves alone, and with the fitted constants; which were fitted to."""

    points: tuple[Point, ...]
    measured: Float[np.ndarray, " points"]
    before: Float[np.ndarray, " points"]
    after: Float[np.ndarray, " points"]
    fitted: np.ndarray
    constants: tuple[Constant, ...]


def predicted(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]], hardware: str, chosen: frozenset[str]
) -> Predicted:
    """Predict points that have rows; `chosen` are the keys of those that constants are fitted to."""
    timed = tuple(p for p in points if "flight" in rows.get(p.key, {}))
    seconds = [float(rows[p.key]["flight"]) for p in timed]
    asked = asked_of(timed, seconds, hardware)
    fitting = np.array([p.key in chosen for p in timed])
    machine = asked[0].request.machine  # with the curves of our kernels, as `run` has them
    few = program_steps([a for a, fits in zip(asked, fitting, strict=True) if fits], "layouts.json", "")
    every = program_steps(asked, "layouts.json", "")
    fit = solve(machine, [few], prior_widths(machine))
    before, after = (adjusted_seconds(machine, every, logs) for logs in (np.zeros_like(fit.logs), fit.logs))
    return Predicted(timed, np.array(seconds), before, after, fitting, _constants(fit))


def asked_of(points: Sequence[Point], seconds: Sequence[float], hardware: str) -> list[Asked]:
    """The points as questions to the cost model."""
    with tempfile.TemporaryDirectory() as folder:
        asked = []
        for point, measured in zip(points, seconds, strict=True):
            request = _request(point, pathlib.Path(folder), hardware)
            asked.append(
                Asked(point.key, request, parse(point.shape.layout, point.shape.gpus, request.model), measured)
            )
        return asked


def _request(point: Point, folder: pathlib.Path, hardware: str) -> Request:
    shape = point.shape
    place = folder / shape.slice.model
    if not place.exists():
        place.mkdir()
        scaled_config(shape.slice.model, Scale("full", shape.slice.layers, shape.slice.experts), place)
    return of_program(
        make_request(
            str(place / "config.json"),
            hardware,
            shape.gpus,
            context=point.context,
            concurrency=shape.requests,
            verify_width=shape.verify,
            draft="none",
            precision=PLAIN_BF16,
        ),
        shape.longest,
    )


def _constants(fit: Fit) -> tuple[Constant, ...]:
    """Those that observations moved, furthest first."""
    names = [*(f.name for f in FACTORS), "launch of the program"]
    found = [
        Constant(names[i], float(np.exp(fit.logs[i])), float(fit.pulls[i]), float(fit.told[i]))
        for i in np.flatnonzero(fit.touched)
    ]
    return tuple(sorted(found, key=lambda c: -abs(c.pull)))
