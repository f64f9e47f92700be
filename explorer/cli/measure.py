"""`meshwright measure`: this machine's kernels and exchanges timed, as curves for `--hardware FILE`."""

import json as jsonlib
import pathlib
import time
from typing import TYPE_CHECKING, Annotated, Final

from typer import BadParameter, Option

from explorer.cli.devices import run_here
from explorer.cli.options import MODEL, OUTPUT, Json, count, real, text
from explorer.cli.output import OutputError, emit, note, out_file, watching
from explorer.cli.session import warm

if TYPE_CHECKING:
    from explorer.measuring.answer import Measured
    from explorer.measuring.journal import Journal
    from explorer.measuring.machine import Here

_MADE: Final = "Curves of one machine, written by `meshwright measure`: do not edit."
_BY: Final = "by `meshwright measure --from`: do not edit."


def measure(
    out: Annotated[str, text("Write curves here, and rows beside it.", OUTPUT, "FILE.toml")] = "measured.toml",
    gpus: Annotated[int | None, count("GPUs to measure; all that are here if left out.", MODEL)] = None,
    hardware: Annotated[
        str | None, text("Chip that they are; found by the device's name if left out.", MODEL, "CHIP")
    ] = None,
    simulate: Annotated[int | None, count("Try it out on so many devices of the CPU.", MODEL)] = None,
    seconds: Annotated[float, real("Stop timing after so long; run again to go on.", MODEL, "SECONDS")] = 180.0,
    only: Annotated[
        str | None, text("Families of kernels and kinds of exchange, as in gemm,all_reduce.", MODEL, "NAME,...")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="A third of the rows, or as many as fits need.", rich_help_panel=MODEL)
    ] = False,
    from_: Annotated[
        str | None,
        Option("--from", help="Time nothing: fit the rows of a document.", rich_help_panel=MODEL, metavar="FILE.json"),
    ] = None,
    json: Json = False,
) -> None:
    """Time this machine's kernels and exchanges, and write curves for --hardware FILE."""
    started = time.monotonic()
    if not seconds > 0:
        raise BadParameter(f"seconds = {seconds:g}: must be above 0")
    file = out_file(out, "out", (".toml",))
    assert file is not None
    names = [name for name in (only or "").split(",") if name]
    if from_ is not None:
        if names or quick or gpus or hardware or simulate:
            raise OutputError("--from times nothing, and its document names the chip: leave out all but --out")
        _fit(from_, file, json)
        return
    run_here(simulate, distributed=False)
    warm()
    from explorer.measuring.machine import machine_here

    here = machine_here(hardware, gpus, simulate is not None)
    beside = file.with_suffix(".json")
    found, journal = _timed(here, file, names, quick, started + seconds)
    document = found.document()
    file.write_text(found.curve_file(_MADE), encoding="utf-8")
    beside.write_text(jsonlib.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _show(found, json)
    if not found.left:
        journal.done()
    if kept := sum("date" in row for row in document["rows"]):
        note(f"note: {kept} rows that {beside} had and that were not timed now are kept")
    use = f": plan with them by `meshwright plan --hardware {file} ...`" if here.real else ""
    note(f"wrote {file} and {beside}{use}")


def _timed(here: "Here", file: pathlib.Path, names: list[str], quick: bool, end: float) -> "tuple[Measured, Journal]":
    """Curves of the rows that were timed until `end` (of `time.monotonic`) and of those of an earlier run; the journal
    of the former, to be kept until they are written."""
    from explorer.measuring.answer import answer
    from explorer.measuring.earlier import earlier_rows, together
    from explorer.measuring.fits import fitting_seconds
    from explorer.measuring.journal import Journal
    from explorer.measuring.listing import benches_of, curves_told
    from explorer.measuring.session import measure as time_all

    earlier = earlier_rows(file, file.with_suffix(".json"), here.surroundings)
    benches = benches_of(here, names, quick)
    journal = Journal(file.with_suffix(".journal"), here.surroundings)
    if journal.resumed:
        note(f"note: going on with {journal.resumed} rows of {journal.path}")
    if journal.set_aside:
        note(f"note: {journal.set_aside} has the rows of other devices or versions, which are measured anew")
    deadline = end - fitting_seconds(len(curves_told(benches, earlier)))
    try:
        with watching("measuring") as report:
            left = time_all(here, benches, journal, deadline, report)
            report("fitting", 1.0)
            rows = together(earlier, journal.rows.values())
            found = answer(here.machine, here.surroundings, rows, left, names)
    except KeyboardInterrupt:
        note(f"note: {len(journal.rows)} rows are kept in {journal.path}: run again to go on")
        raise
    return found, journal


def _fit(path: str, file: pathlib.Path, json: bool) -> None:
    """Curves of rows that were timed elsewhere."""
    warm()
    from explorer.measuring.earlier import fitted_to, writable_curves

    writable_curves(file)
    with watching("fitting"):
        found = fitted_to(pathlib.Path(path).expanduser())
    file.write_text(found.curve_file(f"Curves fitted to the rows of {path} {_BY}"), encoding="utf-8")
    _show(found, json)
    note(f"wrote {file}")


def _show(found: "Measured", json: bool) -> None:
    from explorer.report.measure import draw

    emit(found.document(), draw, json)
