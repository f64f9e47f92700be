"""Reading the data files: every number is `{ value, unit, source }`, and none gets past without all three.

Chip files are datasheets. Curve files say how near to them real kernels come; a curve file inherits what it does not
state, and what is inherited counts as assumed.
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
_FALLBACK: Final = "assumed"


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


def read_chip(name: str) -> dict[str, Figure]:
    """Datasheet figures of a chip, by path (`peak.fp8`)."""
    return _read(CHIPS / f"{name}.toml", Provenance.DATASHEET)[0]


def read_curves(name: str) -> dict[str, Figure]:
    """Efficiencies and latencies of a chip's kernels, by path (`gemm.latency.fp8`), with those it inherits."""
    own, inherits = _read(CURVES / f"{name}.toml", Provenance.ASSUMED)
    if inherits is None:
        return own
    nearest = {
        path: figure if inherits == _FALLBACK else _borrowed(figure, inherits)
        for path, figure in read_curves(inherits).items()
    }
    # An entry by rate replaces one without, and the other way round.
    stems = {path.rsplit(".", 1)[0] for path in own} | set(own)
    kept = {p: f for p, f in nearest.items() if p not in stems and p.rsplit(".", 1)[0] not in own}
    return {**kept, **own}


def _borrowed(figure: Figure, chip: str) -> Figure:
    if figure.source.startswith("from "):
        return figure
    return replace(figure, provenance=Provenance.ASSUMED, source=f"from {chip}: {figure.source}")


def _read(path: pathlib.Path, default: Provenance) -> tuple[dict[str, Figure], str | None]:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    inherits = document.pop("inherits", None)
    sources = document.pop("sources", {})
    figures = dict(_flatten(document, "", sources, default, path.name))
    return figures, inherits


def _flatten(
    node: Mapping[str, Any], prefix: str, sources: Mapping[str, str], default: Provenance, file: str
) -> Iterator[tuple[str, Figure]]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if not isinstance(value, dict):
            raise DataError(f"{file}: {path} is a bare value; write {{ value = ..., unit = ..., source = ... }}")
        if "value" in value:
            yield path, _figure(value, path, sources, default, file)
        else:
            yield from _flatten(value, f"{path}.", sources, default, file)


def _figure(entry: Mapping[str, Any], path: str, sources: Mapping[str, str], default: Provenance, file: str) -> Figure:
    if missing := {"value", "unit", "source"} - entry.keys():
        raise DataError(f"{file}: {path} lacks {', '.join(sorted(missing))}; every number states all three")
    value, source = entry["value"], entry["source"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{file}: {path} is {value!r}; a figure is a number")
    # A long source is written once under [sources] and named by its key.
    provenance = Provenance(entry.get("provenance", default))
    return Figure(float(value), entry["unit"], sources.get(source, source), provenance)
