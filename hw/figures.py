"""Reading the data files: every number is `{ value, unit, source }`, and none gets past without all three.

Chip files are datasheets. Curve files say how near to them real kernels come; a curve file inherits what it does not
state, and what is inherited from another chip counts as assumed. `chip@name` are the curves of one deployment on a
chip. Fit files (`hw.fits`) are written by a program, and stand between what a curve file states and what it inherits.
"""

import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from hw.errors import MeshwrightError

CHIPS: Final = pathlib.Path(__file__).parent / "chips"
CURVES: Final = pathlib.Path(__file__).parent / "curves"
FITS: Final = pathlib.Path(__file__).parent / "fits"
_FALLBACK: Final = "assumed"
_NEAREST: Final = {"bf16": ("fp8", "fp4"), "fp8": ("bf16", "fp4"), "fp4": ("fp8", "bf16")}
_UNITS: Final = {
    "_latency": "s", "latency": "s", "_efficiency": "fraction", "_bytes": "B", "_rows": "rows", "waves": "flag",
    "sharpness": "exponent", "home": "fraction", "spread": "fraction", "contention": "fraction",
}  # fmt: skip


class Provenance(StrEnum):
    """Where a number comes from, best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    DATASHEET = "datasheet"
    ASSUMED = "assumed"


class DataError(MeshwrightError):
    """A data file that does not say what it must."""


@dataclass(frozen=True)
class Figure:
    """One number with what it is counted in and where it comes from."""

    value: float
    unit: str
    source: str
    provenance: Provenance

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit} ({self.provenance}: {self.source})"


def chip_names() -> tuple[str, ...]:
    """The chips that have a data file."""
    return tuple(sorted(path.stem for path in CHIPS.glob("*.toml")))


def chip_of(curves: str) -> str:
    """The chip that a curve file is of: `b200` of `b200@article`, the curves of one deployment on it."""
    return curves.partition("@")[0]


def program_curves(chip: str) -> str | None:
    """The curves of our own programs on a chip, as `meshwright measure` finds them (`h200@program`); None where none
    ship."""
    name = f"{chip}@program"
    return name if (CURVES / f"{name}.toml").exists() else None


def read_chip(name: str) -> dict[str, Figure]:
    """Datasheet figures of a chip, by path (`peak.fp8`)."""
    return _read(CHIPS / f"{name}.toml", Provenance.DATASHEET)[0]


def read_curves(name: str) -> dict[str, Figure]:
    """Efficiencies and latencies of a chip's kernels, by path (`gemm.latency.fp8`), with those it inherits."""
    own, inherits, like = _read(CURVES / f"{name}.toml", Provenance.ASSUMED)
    if inherits is None:
        return own
    own_chip = inherits in (_FALLBACK, chip_of(name))
    nearest = {
        path: figure if own_chip else _borrowed(figure, inherits) for path, figure in read_curves(inherits).items()
    }
    fits = FITS / f"{name}.toml"
    fitted = _at_every_rate(read_fits(fits), read_chip(name)) if fits.exists() else {}
    below = over(nearest, fitted)
    return over(over(below, _likened(below, like, read_chip(chip_of(name)))), own)


def _likened(below: Mapping[str, Figure], like: Mapping[str, str], chip: Mapping[str, Figure]) -> dict[str, Figure]:
    """Curves that a file says are like another's: `"grouped_gemm.fp4" = "grouped_gemm_packed.fp8"`."""
    found = {}
    for ours, theirs in like.items():
        (owner, rate), (other, shown) = ours.split("."), theirs.split(".")
        for path, figure in below.items():
            if path.startswith(f"{other}.") and path.endswith(f".{shown}"):
                what = path.split(".")[1]
                found[f"{owner}.{what}.{rate}"] = _as_at(figure, what, theirs, shown, rate, chip)
    return found


def _as_at(figure: Figure, what: str, of: str, shown: str, rate: str, chip: Mapping[str, Figure]) -> Figure:
    """A figure that is known at one rate, taken to hold at another.

    A kernel that no table shows at a faster rate is taken to compute no faster than the one shown.
    """
    share = 1.0
    if what == "flops_efficiency":
        share = min(1.0, chip[f"peak.{shown}"].value / chip[f"peak.{rate}"].value)
    source = f"as {of}, no table at {rate}: {figure.source}"
    return replace(figure, value=figure.value * share, source=source, provenance=Provenance.ASSUMED)


def _at_every_rate(fits: Mapping[str, Figure], chip: Mapping[str, Figure]) -> dict[str, Figure]:
    """Fits by rate with the rates that have no table: as at the nearest that has one, slower ones first."""
    filled = dict(fits)
    stems = {path.rsplit(".", 1)[0] for path in fits if path.rsplit(".", 1)[1] in _NEAREST}
    for stem in stems:
        for rate, nearest in _NEAREST.items():
            shown = next((r for r in (rate, *nearest) if f"{stem}.{r}" in fits), None)
            if shown is None or shown == rate:
                continue
            figure = fits[f"{stem}.{shown}"]
            filled[f"{stem}.{rate}"] = _as_at(figure, stem.split(".")[1], shown, shown, rate, chip)
    return filled


def over(below: Mapping[str, Figure], above: Mapping[str, Figure]) -> dict[str, Figure]:
    """Both, where they differ the latter. An entry without a rate replaces those by rate; an entry by rate leaves the
    other rates as they were."""
    stems = {path.rpartition(".")[0] for path in above if path.rpartition(".")[2] in _NEAREST}
    spread_out = {f"{path}.{rate}": below[path] for path in stems & below.keys() for rate in _NEAREST}
    kept = {p: f for p, f in below.items() if p not in stems and p.rpartition(".")[0] not in above}
    return {**kept, **spread_out, **above}


def read_fits(path: pathlib.Path) -> dict[str, Figure]:
    """Fitted parameters by path (`gemm.latency.fp8`, `all_gather.latency`), with the table that they are fitted to."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    figures: dict[str, Figure] = {}
    for owner, entry in document.items():
        by_rate = entry if "values" not in entry else {"": entry}
        for rate, fit in by_rate.items():
            for what, value in fit["values"].items():
                end = f".{rate}" if rate else ""
                source = f"{fit['source']} ({fit['rows']} rows, held out {100 * fit['held_out']:.1f} %)"
                figures[f"{owner}.{what}{end}"] = Figure(float(value), unit_of(what), source, Provenance.FITTED)
    return figures


def unit_of(what: str) -> str:
    """The unit of a curve's field."""
    for ending, unit in _UNITS.items():
        if what.endswith(ending):
            return unit
    raise DataError(f"no unit is known for {what!r}: a curve's fields end in {', '.join(_UNITS)}")


def _borrowed(figure: Figure, chip: str) -> Figure:
    if figure.source.startswith("from "):
        return figure
    return replace(figure, provenance=Provenance.ASSUMED, source=f"from {chip}: {figure.source}")


def _read(path: pathlib.Path, default: Provenance) -> tuple[dict[str, Figure], str | None, dict[str, str]]:
    """Figures of a file, what it inherits, and which of its curves are like others."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    inherits, like = document.pop("inherits", None), document.pop("like", {})
    sources = document.pop("sources", {})
    figures = dict(flattened(document, "", sources, default, path.name))
    return figures, inherits, like


def flattened(
    node: Mapping[str, Any], prefix: str, sources: Mapping[str, str], default: Provenance, file: str
) -> Iterator[tuple[str, Figure]]:
    """The figures of a file's tables, by path; DataError for a number without unit or source."""
    for key, value in node.items():
        path = f"{prefix}{key}"
        if not isinstance(value, dict):
            raise DataError(f"{file}: {path} is a bare value; write {{ value = ..., unit = ..., source = ... }}")
        if "value" in value:
            yield path, _figure(value, path, sources, default, file)
        else:
            yield from flattened(value, f"{path}.", sources, default, file)


def _figure(entry: Mapping[str, Any], path: str, sources: Mapping[str, str], default: Provenance, file: str) -> Figure:
    if missing := {"value", "unit", "source"} - entry.keys():
        raise DataError(f"{file}: {path} lacks {', '.join(sorted(missing))}; every number states all three")
    value, source = entry["value"], entry["source"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{file}: {path} is {value!r}; a figure is a number")
    # A long source is written once under [sources] and named by its key.
    provenance = Provenance(entry.get("provenance", default))
    return Figure(float(value), entry["unit"], sources.get(source, source), provenance)
