"""The answer of `meshwright calibrate`: figures before and after, what was measured beside both, and the curve file."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
import numpy as np

from explorer.calibration.factors import FACTORS, adjusted, base_of, changed_figures, prior_widths
from explorer.calibration.observed import CalibrationError, Observed
from explorer.calibration.solve import Fit, solve
from explorer.calibration.sources import Ran
from explorer.documents import Document, Schema, heading, layout_entry, plain, versions
from hw.compat import in_x64
from hw.curve_files import curve_file_text
from hw.figures import Figure, Provenance, chip_of
from hw.machine import Machine

# Standard deviations of its prior beyond which a factor is called unlikely.
FAR: Final = 2.0
_NO_LAYOUT: Final = {"layout": None, "layout_text": None}
_UNCHANGED: Final = 1e-4  # relative: a figure is written with four digits and more


@dataclass(frozen=True)
class FigureChange:
    """A figure of the curves before and after, and the factor that moved it with others.

    `width`: sd of the factor's logarithm before anything was measured here, `pull`: by how many of these it moved,
    `told`: share of that variance which the observations take away.
    """

    figure: str
    factor: str
    unit: str
    before: float
    provenance: Provenance
    after: float
    ratio: float
    width: float
    pull: float
    told: float


@dataclass(frozen=True)
class Residual:
    """One observation in seconds, beside the prediction before and after; `width`: how far a right one may lie off."""

    file: str
    name: str
    measured: float
    before: float
    after: float
    width: float


@dataclass(frozen=True)
class Errors:
    """Medians of |predicted / measured - 1| over the observations."""

    observations: int
    median_before: float
    median_after: float


@dataclass(frozen=True)
class EngineChange:
    """How the engine's own work in a step was scaled to explain runs of a service. It is no part of the curve file: an
    engine's parameters are common to all machines."""

    factor: float
    pull: float


@dataclass(frozen=True)
class Calibration:
    """A machine adjusted to observations."""

    before: Machine
    after: Machine
    inherits: str
    own: dict[str, Figure]
    observed: tuple[Observed, ...]
    ran: Ran | None
    figures: tuple[FigureChange, ...]
    observations: tuple[Residual, ...]
    errors: Errors
    engine: EngineChange | None
    source: str

    @property
    def curve_file(self) -> str:
        """What `--hardware FILE.toml` reads: the figures in which the machine differs from the curves it inherits."""
        changed = {c.figure: Figure(c.after, c.unit, self.source, Provenance.FITTED) for c in self.figures}
        comment = "Curves of one machine, written by `meshwright calibrate`: all else is as the curves it inherits."
        return curve_file_text(self.inherits, {**self.own, **changed}, comment)

    def document(self) -> Document:
        """The `calibration/1` document."""
        ran = self.ran
        sources = [
            {"file": o.file, "format": o.format, "date": o.date, "observations": len(o.names)} for o in self.observed
        ]
        return {
            "schema": str(Schema.CALIBRATION),
            "request": {
                "hardware": self.before.name,
                "chip": chip_of(self.inherits),
                "against": None if ran is None else heading(Schema.COST, ran.request)["request"],
            },
            **(_NO_LAYOUT if ran is None else layout_entry(ran.layout, ran.request.model)),
            "versions": versions(),
            "notes": self._notes(),
            "sources": sources,
            "errors": plain(self.errors),
            "figures": plain(self.figures),
            "engine": plain(self.engine),
            "observations": plain(self.observations),
        }

    def _notes(self) -> list[str]:
        notes = [f"{o.file}: left out: {what}" for o in self.observed for what in o.left_out]
        for name, pull in {c.factor: c.pull for c in self.figures if abs(c.pull) > FAR}.items():
            notes.append(
                f"{name} moved {abs(pull):.1f} standard deviations of what was known of it: check what was measured, "
                "and that it ran as it was said to"
            )
        if self.engine is not None and abs(self.engine.pull) > FAR:
            notes.append(f"the engine's own work was scaled by {self.engine.factor:.2f}, more than engines differ")
        return notes


@in_x64
def calibrate(machine: Machine, observed: Sequence[Observed], ran: Ran | None = None) -> Calibration:
    """Adjust a machine to observations; `ran`: what ran while they were recorded, for the document.

    Raises CalibrationError where there are none, or where no curve has a part in any of them.
    """
    if not observed:
        raise CalibrationError("nothing was measured: give at least one file with --from")
    widths = prior_widths(machine)
    fit = solve(machine, observed, widths)
    if not np.any(fit.touched):
        raise CalibrationError(f"no curve has a part in {', '.join(o.file for o in observed)}: measure other ops")
    after = adjusted(machine, jnp.asarray(fit.logs[:-1]))
    residuals = _residuals(observed, fit)
    errors = Errors(len(residuals), *(_median_error(residuals, end) for end in ("before", "after")))
    inherits, own = base_of(machine)
    return Calibration(
        before=machine,
        after=after,
        inherits=inherits,
        own=own,
        observed=tuple(observed),
        ran=ran,
        figures=_figures(machine, after, widths, fit),
        observations=residuals,
        errors=errors,
        engine=EngineChange(float(np.exp(fit.logs[-1])), float(fit.pulls[-1])) if fit.touched[-1] else None,
        source=_source(observed, errors),
    )


def _figures(before: Machine, after: Machine, widths: np.ndarray, fit: Fit) -> tuple[FigureChange, ...]:
    """Those that moved, the ones that moved furthest first."""
    rows = []
    for number in np.flatnonzero(fit.touched[:-1]):
        for path, (old, new) in changed_figures(before, after, FACTORS[number]).items():
            ratio = new / old.value
            if abs(ratio - 1.0) > _UNCHANGED:
                known = (float(widths[number]), float(fit.pulls[number]), float(fit.told[number]))
                rows.append(
                    FigureChange(path, FACTORS[number].name, old.unit, old.value, old.provenance, new, ratio, *known)
                )
    return tuple(sorted(rows, key=lambda row: -abs(row.pull)))


def _residuals(observed: Sequence[Observed], fit: Fit) -> tuple[Residual, ...]:
    named = [(o.file, name, t, w) for o in observed for name, t, w in zip(o.names, o.seconds, o.widths, strict=True)]
    return tuple(
        Residual(file, name, float(seconds), float(before), float(after), float(width))
        for (file, name, seconds, width), before, after in zip(named, fit.before, fit.after, strict=True)
    )


def _median_error(residuals: Sequence[Residual], end: str) -> float:
    return float(np.median([abs(getattr(r, end) / r.measured - 1.0) for r in residuals]))


def _source(observed: Sequence[Observed], errors: Errors) -> str:
    files = ", ".join(f"{o.file} of {o.date} ({len(o.names)})" for o in observed)
    return (
        f"calibrated on {datetime.date.today().isoformat()} to {errors.observations} observations: {files}; median "
        f"error {100 * errors.median_before:.1f} % before, {100 * errors.median_after:.1f} % after"
    )
