"""What `meshwright measure` found: rows, the curves that they tell, and the curve file that carries these."""

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from explorer.calibration.measured import SCHEMA, Rows, rows_of
from explorer.documents import Document, plain
from explorer.measuring.errors import MeasuringError
from explorer.measuring.fits import Curve, Kept, curves_of, predicted
from explorer.measuring.journal import FAILED, TRIED
from explorer.measuring.rows import owners_of
from hw.compat import in_x64, on_host
from hw.curve_files import curve_file_text
from hw.figures import Figure, Provenance, unit_of
from hw.machine import Machine
from hw.work import sent_bytes

Row = Mapping[str, Any]
DATE: Final = "date"  # of a row: when it was timed, where that is not when its document was written


@dataclass(frozen=True)
class CurveEntry:
    """A fitted curve: medians of |predicted / measured - 1| on its rows and on rows held out of the fit, and of the
    curve that it replaces; how much longer rows take than that one says; and the best rates of any of its rows."""

    owner: str
    rows: int
    error: float
    held_out: float
    before: float
    longer: float
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Measured:
    """A machine measured. `about`: chip, machine, devices and versions, as in the document; `left`: benches that the
    budget had no time for; `dates`: of each curve's rows."""

    about: Mapping[str, Any]
    rows: tuple[Row, ...]
    left: tuple[str, ...]
    date: str
    curves: tuple[Curve, ...]
    kept: tuple[Kept, ...]
    entries: tuple[CurveEntry, ...]
    dates: tuple[str, ...]

    @property
    def copies(self) -> Mapping[str, float]:
        """Bytes read plus written a second of large copies, by form; none where they were not timed."""
        return next((row["bytes_per_s"] for row in self.rows if "bytes_per_s" in row), {})

    def curve_file(self, made: str) -> str:
        """What `--hardware FILE.toml` reads: the chip's curves, with those that were fitted in their place. `made`: how
        it came about, its first line."""
        figures: dict[str, Figure] = {}
        for curve, dates in zip(self.curves, self.dates, strict=True):
            source = self._source(curve, dates)
            for what, value in {**curve.values, "spread": curve.quality.held_out_p80}.items():
                path = ".".join(filter(None, (curve.owner, what, curve.rate)))
                figures[path] = Figure(value, unit_of(what), source, Provenance.FITTED)
        inherited = "All else is as the curves that it inherits."
        return curve_file_text(self.about["chip"], figures, "\n".join([made, inherited, *self._caveats()]))

    def document(self) -> Document:
        """The `measure/1` document, which `meshwright calibrate --from` reads, too."""
        return {
            "schema": SCHEMA,
            "chip": self.about["chip"],
            "date": self.date,
            "machine": self.about["machine"],
            "devices": self.about["devices"],
            "versions": self.about["versions"],
            "notes": self._notes(),
            "copy_bytes_per_s": dict(self.copies),
            "curves": plain(self.entries),
            "rows": _timed(self.rows),
        }

    def _source(self, curve: Curve, dates: str) -> str:
        devices, held_out = self.about["devices"], 100 * curve.quality.held_out
        where = f"{self.about['machine']}, {devices['count']} x {devices['kind']}, jax {self.about['versions']['jax']}"
        return f"measured on {dates} on {where}: {len(curve.rows)} rows, held out {held_out:.1f} %"

    def _notes(self) -> list[str]:
        failed = [f"{row['name']} does not run here: {row[FAILED]}" for row in self.rows if FAILED in row]
        kept = [f"{name} stays as {self.about['chip']} has it: {why}" for name, why in self.kept]
        left = f"no time for {len(self.left)} rows, {self.left[0]} among them: run again to go on" if self.left else ""
        return [*self._caveats(), *failed, *_not_first(self.rows), *kept, *filter(None, [left])]

    def _caveats(self) -> list[str]:
        if self.about["devices"]["platform"] != "cpu":
            return []
        return ["simulated on the CPU: that all runs is what these times say, and nothing of a GPU"]


@in_x64
@on_host()
def answer(
    machine: Machine,
    about: Mapping[str, Any],
    rows: Sequence[Row],
    left: Sequence[str] = (),
    asked: Collection[str] = (),
    date: str | None = None,
) -> Measured:
    """Curves fitted to rows, which were timed on `date` (None: today) unless they say otherwise. `asked`: families that
    a curve is wanted of. MeasuringError where no row was timed."""
    date = date or datetime.date.today().isoformat()
    timed = _timed(rows)
    if not timed:
        reason = next((f": {row[FAILED]}" for row in rows if FAILED in row), "")
        raise MeasuringError(f"nothing could be timed{reason}: give more --seconds, or see that the devices are free")
    _, observed = rows_of({"schema": SCHEMA, "chip": about["chip"], "date": date, "rows": timed}, "rows")
    found = curves_of(machine, observed, asked)
    dates = {str(row.get("name")): str(row.get(DATE, date)) for row in timed}
    of_curves = [" and ".join(sorted({dates.get(observed.names[i], date) for i in c.rows})) for c in found.curves]
    entries = _entries(machine, observed, found.curves)
    return Measured(about, tuple(rows), tuple(left), date, *found, entries, tuple(of_curves))


def _entries(machine: Machine, observed: Rows, curves: Sequence[Curve]) -> tuple[CurveEntry, ...]:
    before = predicted(machine, observed)
    moved, computed = _amounts(observed)
    entries = []
    for curve in curves:
        seconds = observed.seconds[curve.rows]
        entries.append(
            CurveEntry(
                owner=".".join(filter(None, (curve.owner, curve.rate))),
                rows=len(curve.rows),
                error=curve.quality.median,
                held_out=curve.quality.held_out,
                before=curve.before,
                longer=float(np.median(seconds / before[curve.rows])),
                bytes_per_s=float((moved[curve.rows] / seconds).max()),
                flops_per_s=float((computed[curve.rows] / seconds).max()),
            )
        )
    return tuple(entries)


def _not_first(rows: Sequence[Row]) -> list[str]:
    """Which form of an op was timed where it is not the first, and why: a line for all rows of one family that say the
    same."""
    said: dict[tuple[str, ...], str] = {}
    for row in rows:
        for why in row.get(TRIED, ()):
            line = f"{row['name']}: {row['form']} was timed, as {why}"
            said.setdefault((*owners_of(row), row["form"], why), line)
    return list(said.values())


def _timed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with seconds, as a document has them."""
    return [{name: value for name, value in row.items() if name != TRIED} for row in rows if "seconds" in row]


def _amounts(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and FLOPs of each observation: through HBM of kernels, sent by a rank of exchanges."""
    kernels = len(rows.names) - len(rows.collective.kind)
    moved, computed = np.zeros(len(rows.names)), np.zeros(len(rows.names))
    np.add.at(moved, rows.owner, np.asarray(rows.work.bytes))
    np.add.at(computed, rows.owner, np.asarray(rows.work.flops))
    if rows.collective.kind:
        c = rows.collective
        moved[kernels:] = np.asarray(sent_bytes(c.kind, c.payload, c.size))
    return moved, computed
