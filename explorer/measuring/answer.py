"""What `meshwright measure` found: rows, the curves that they tell, and the curve file that carries these."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from explorer.calibration.measured import SCHEMA, Rows, rows_of
from explorer.documents import Document, plain
from explorer.measuring.errors import MeasuringError
from explorer.measuring.fits import LEAST_ROWS, Curve, curves_of
from explorer.measuring.journal import BANDWIDTH, FAILED, TRIED
from explorer.measuring.machine import Here
from explorer.measuring.rows import owners_of
from hw.compat import in_x64, on_host
from hw.curve_files import curve_file_text
from hw.figures import Figure, Provenance, unit_of
from hw.work import sent_bytes

Row = Mapping[str, Any]


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
    """A machine measured. `left`: benches that the budget had no time for."""

    here: Here
    rows: tuple[Row, ...]
    left: tuple[str, ...]
    date: str
    curves: tuple[Curve, ...]
    entries: tuple[CurveEntry, ...]

    @property
    def copies(self) -> Mapping[str, float]:
        """Bytes read plus written a second of large copies, by form; none where they were not timed."""
        return next((row["bytes_per_s"] for row in self.rows if row["name"] == BANDWIDTH), {})

    @property
    def curve_file(self) -> str:
        """What `--hardware FILE.toml` reads: the chip's curves, with those that were fitted here in their place."""
        figures: dict[str, Figure] = {}
        for curve in self.curves:
            values = {**curve.values, "spread": curve.quality.held_out_p80}
            for what, value in values.items():
                path = ".".join(filter(None, (curve.owner, what, curve.rate)))
                figures[path] = Figure(value, unit_of(what), self._source(curve), Provenance.FITTED)
        comment = "Curves of one machine, written by `meshwright measure`: all else is as the curves it inherits."
        return curve_file_text(self.here.machine.sources.chip, figures, "\n".join([comment, *self._caveats()]))

    def document(self) -> Document:
        """The `measure/1` document, which `meshwright calibrate --from` reads, too."""
        device = self.here.devices[0]
        return {
            "schema": SCHEMA,
            "chip": self.here.machine.sources.chip,
            "date": self.date,
            "machine": self.here.name,
            "devices": {"kind": device.device_kind, "platform": device.platform, "count": len(self.here.devices)},
            "versions": self.here.versions,
            "notes": self._notes(),
            "copy_bytes_per_s": dict(self.copies),
            "curves": plain(self.entries),
            "rows": _timed(self.rows),
        }

    def _source(self, curve: Curve) -> str:
        here, held_out = self.here, 100 * curve.quality.held_out
        machine = f"{here.name}, {len(here.devices)} x {here.devices[0].device_kind}, jax {here.versions['jax']}"
        return f"measured on {self.date} on {machine}: {len(curve.rows)} rows, held out {held_out:.1f} %"

    def _notes(self) -> list[str]:
        failed = [f"{row['name']} does not run here: {row[FAILED]}" for row in self.rows if FAILED in row]
        counts: dict[str, int] = {}
        for row in _timed(self.rows):
            for owner in owners_of(row):
                counts[owner] = counts.get(owner, 0) + 1
        few = [f"{owner}: {n} rows are too few for a curve" for owner, n in counts.items() if n < LEAST_ROWS]
        left = f"no time for {len(self.left)} rows, {self.left[0]} among them: run again to go on" if self.left else ""
        return [*self._caveats(), *failed, *_not_first(self.rows), *few, *filter(None, [left])]

    def _caveats(self) -> list[str]:
        return [] if self.here.real else ["devices of the CPU: that all runs is all that these times say of a GPU"]


@in_x64
@on_host()
def answer(here: Here, rows: Sequence[Row], left: Sequence[str] = ()) -> Measured:
    """Curves fitted to the rows of a journal. MeasuringError where no row was timed."""
    date = datetime.date.today().isoformat()
    timed = _timed(rows)
    if not timed:
        reason = next((f": {row[FAILED]}" for row in rows if FAILED in row), "")
        raise MeasuringError(f"nothing could be timed{reason}: give more --seconds, or see that the devices are free")
    _, observed = rows_of({"schema": SCHEMA, "chip": here.machine.sources.chip, "date": date, "rows": timed}, "rows")
    curves = curves_of(here.machine, observed)
    before = np.asarray(observed.predict(here.machine, jnp.ones(())))
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
    return Measured(here, tuple(rows), tuple(left), date, curves, tuple(entries))


def _not_first(rows: Sequence[Row]) -> list[str]:
    """Which form of an op was timed where it is not the first, and why: a line for all rows of an op (the first word of
    their names) that say the same."""
    said: dict[str, str] = {}
    for row in rows:
        for why in row.get(TRIED, ()):
            op = row["name"].split()[0]
            said.setdefault(f"{op}|{row['form']}|{why}", f"{row['name']}: {row['form']} was timed, as {why}")
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
