"""Curve files of the user's own: read by path, checked as closely as anything that a user types, and written.

Such a file inherits the curves of a chip and states only what differs on one machine, each figure as
`{ value, unit, provenance, source }`.
"""

import pathlib
import tomllib
from collections.abc import Collection, Mapping
from typing import Final

from hw.errors import MeshwrightError
from hw.figures import CURVES, Figure, Provenance, chip_names, flattened, unit_of

SUFFIX: Final = ".toml"
_DIGITS: Final = 6
# Most that a figure may be, by unit; of an efficiency, the datasheet's own figure.
_MOST: Final = {
    "efficiency": 1.0, "fraction": 10.0, "s": 1.0, "B": 1e6, "rows": 1e6, "flag": 1.0, "exponent": 100.0
}  # fmt: skip
# What may be said of each family and exchange, and its value where no file says it (None: some file must).
Fields = Mapping[str, Mapping[str, float | None]]


class CurveFileError(MeshwrightError):
    """A curve file that cannot be read, or that says what cannot be."""


def is_curve_file(name: str) -> bool:
    """Whether a name of hardware is a path of a curve file and not a chip's."""
    return str(name).endswith(SUFFIX)


def read_curve_file(name: str | pathlib.Path, fields: Fields, rates: Collection[str]) -> tuple[str, dict[str, Figure]]:
    """Which curves the file inherits, and its own figures by path (`gemm.latency.fp8`).

    `rates`: those that a family's figure may be for.
    Raises CurveFileError with one line for a file that is missing or no TOML, that inherits no known curves, names
    what there is not, or states a value that cannot be.
    """
    path = pathlib.Path(name).expanduser()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CurveFileError(
            f"hardware {str(name)!r}: cannot be read ({reason}); give a chip's name, or a curve file such as "
            "`meshwright calibrate` writes"
        ) from None
    inherits, sources = document.pop("inherits", None), document.pop("sources", {})
    chips = chip_names()
    known = sorted(file.stem for file in CURVES.glob("*.toml") if file.stem.partition("@")[0] in chips)
    if inherits not in known:
        raise CurveFileError(
            f"{path.name}: inherits = {inherits!r}: must name the curves that the file changes, one of "
            f"{', '.join(known)}"
        )
    try:
        figures = dict(flattened(document, "", sources, Provenance.FITTED, path.name))
    except (ValueError, TypeError, AttributeError) as error:
        provenances = ", ".join(Provenance)
        raise CurveFileError(
            f"{path.name}: {error}; a figure is {{ value, unit, source }}, its provenance one of {provenances}"
        ) from None
    for at, figure in figures.items():
        _check(at, figure, fields, rates, path.name)
    return inherits, figures


def _check(at: str, figure: Figure, fields: Fields, rates: Collection[str], file: str) -> None:
    owner, _, rest = at.partition(".")
    what, _, rate = rest.partition(".")
    if owner not in fields:
        raise CurveFileError(f"{file}: [{owner}] is no curve: known are {', '.join(fields)}")
    if what not in fields[owner]:
        raise CurveFileError(f"{file}: {at}: there is no {what!r} of {owner}: known are {', '.join(fields[owner])}")
    if rate and rate not in rates:
        raise CurveFileError(f"{file}: {at}: {rate!r} is no rate of it: known are {', '.join(rates)}")
    if figure.unit != unit_of(what):
        raise CurveFileError(f"{file}: {at} is in {figure.unit!r}: {what} is in {unit_of(what)!r}")
    needed = what.endswith("efficiency") and fields[owner][what] is None
    most = _MOST["efficiency" if what.endswith("efficiency") else figure.unit]
    if not 0 <= figure.value <= most or (needed and not figure.value):
        rule = f"must be above 0 and at most {most:g}" if needed else f"must be from 0 to {most:g}"
        raise CurveFileError(f"{file}: {at} = {figure.value:g} {figure.unit}: {rule}")


def curve_file_text(inherits: str, figures: Mapping[str, Figure], comment: str) -> str:
    """The file that `read_curve_file` reads back to the same: figures by path, each long source written once."""
    sources = {source: f"source-{i + 1}" for i, source in enumerate(dict.fromkeys(f.source for f in figures.values()))}
    lines = [*(f"# {line}" for line in comment.splitlines()), "", f'inherits = "{inherits}"']
    owner = None
    for path, figure in sorted(figures.items()):
        if path.partition(".")[0] != owner:
            owner = path.partition(".")[0]
            lines += ["", f"[{owner}]"]
        value = f"{figure.value:.{_DIGITS}g}"
        lines.append(
            f'{path.partition(".")[2]} = {{ value = {value}, unit = "{figure.unit}", '
            f'provenance = "{figure.provenance}", source = "{sources[figure.source]}" }}'
        )
    lines += ["", "[sources]", *(f"{key} = {_quoted(source)}" for source, key in sources.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic string of TOML; characters that it may not hold, which a file's name can, become spaces."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
