"""What an earlier run left where this one will write, and rows that were stored elsewhere."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from explorer.calibration.measured import SCHEMA, rows_of
from explorer.measuring.answer import DATE, Measured, answer
from explorer.measuring.errors import MeasuringError
from explorer.measuring.journal import BANDWIDTH, whole
from hw.compat import on_host
from hw.machine import load_machine

Row = Mapping[str, Any]
_OURS: Final = "by `meshwright measure"  # stands in the comment that our curve files begin with
_ELSEWHERE: Final = "move it away, or give another --out"
_UNKNOWN: Final = {"kind": "unknown device", "platform": "unknown", "count": 1}


class Stored(NamedTuple):
    """Rows of a `measure/1` document, when they were timed, and what is said of where: chip, machine, devices and
    versions."""

    about: Mapping[str, Any]
    date: str
    rows: tuple[Row, ...]


def stored(path: pathlib.Path) -> Stored:
    """A document's rows. One line (MeasuringError, CalibrationError) for what is no such document."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MeasuringError(f"{path.name} cannot be read ({reason}): give a {SCHEMA} document") from None
    chip, _ = rows_of(document, path.name)
    about = {
        "chip": chip,
        "machine": str(document.get("machine") or "unknown"),
        "devices": _like(document.get("devices"), _UNKNOWN),
        "versions": _like(document.get("versions"), {"jax": "unknown"}),
    }
    copies = {"name": BANDWIDTH, "bytes_per_s": document.get("copy_bytes_per_s")}
    rows = (*document["rows"], *([copies] if whole(copies) else []))
    return Stored(about, str(document.get("date") or "unknown"), rows)


def earlier_rows(out: pathlib.Path, beside: pathlib.Path, surroundings: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows in `beside`, where that and the curve file `out` are of an earlier run on the same machine, with their
    dates; none where there are no such files.

    MeasuringError, one line, where either is something else or cannot be written: nothing of another's is overwritten,
    and no time is spent on rows that could not be kept.
    """
    writable_curves(out)
    _require_writable(beside)
    if not beside.exists():
        if out.exists():
            raise MeasuringError(f"{out.name} is there, but not {beside.name} with its rows: {_ELSEWHERE}")
        return ()
    about, date, rows = stored(beside)
    if _same(about) != _same(surroundings):
        raise MeasuringError(f"{beside.name} has rows of other devices or versions: {_ELSEWHERE}")
    return tuple({DATE: date, **row} for row in rows if "seconds" in row and "name" in row)


def together(earlier: Sequence[Row], timed: Iterable[Row]) -> list[Row]:
    """The rows of an earlier run that this one has not timed, and its own."""
    timed = list(timed)
    anew = {row["name"] for row in timed if "seconds" in row}
    return [*(row for row in earlier if row["name"] not in anew), *timed]


def fitted_to(path: pathlib.Path) -> Measured:
    """The curves that a stored document's rows tell."""
    about, date, rows = stored(path)
    with on_host():
        machine = load_machine(about["chip"])
    return answer(machine, about, rows, date=date)


def writable_curves(out: pathlib.Path) -> None:
    """MeasuringError where a curve file may not be written there, or is another's."""
    _require_writable(out)
    if out.exists() and _OURS not in out.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]:
        raise MeasuringError(f"{out.name} is there and was not written by `measure`: {_ELSEWHERE}")


def _require_writable(path: pathlib.Path) -> None:
    if not path.exists():
        return
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise MeasuringError(f"{path.name} cannot be written ({error.strerror}): {_ELSEWHERE}") from None


def _same(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has to be the same for rows to stand beside each other; how many devices there were does not."""
    return {**about, "devices": {**about["devices"], "count": 0}}


def _like(found: Any, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was found, with what is known of it where it says nothing."""
    return {**known, **found} if isinstance(found, dict) else known
