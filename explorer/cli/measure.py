"""`meshwright measure`: this machine's kernels and exchanges timed, as curves for `--hardware FILE`."""

import json as jsonlib
import time
from typing import Annotated, Final

from typer import BadParameter, Option

from explorer.cli.devices import run_here
from explorer.cli.options import MODEL, OUTPUT, Json, count, real, text
from explorer.cli.output import emit, note, out_file, watching
from explorer.cli.session import warm

_FITTED_IN: Final = 12.0  # seconds of a budget that are kept for the fits


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
    quick: Annotated[bool, Option("--quick", help="A third of the rows.", rich_help_panel=MODEL)] = False,
    json: Json = False,
) -> None:
    """Time this machine's kernels and exchanges, and write curves for --hardware FILE."""
    started = time.monotonic()
    if not seconds > 0:
        raise BadParameter(f"seconds = {seconds:g}: must be above 0")
    file = out_file(out, "out", (".toml",))
    assert file is not None
    run_here(simulate, distributed=False)
    warm()
    from explorer.measuring.answer import answer
    from explorer.measuring.listing import benches_of
    from explorer.measuring.machine import machine_here
    from explorer.measuring.session import journal_of
    from explorer.measuring.session import measure as time_all
    from explorer.report.measure import draw

    here = machine_here(hardware, gpus, simulate is not None)
    benches = benches_of(here, [name for name in (only or "").split(",") if name], quick)
    journal = journal_of(file.with_suffix(".journal"), here)
    if journal.resumed:
        note(f"note: going on with {journal.resumed} rows of {journal.path}")
    if journal.set_aside:
        note(f"note: {journal.set_aside} has the rows of other devices or versions, which are measured anew")
    try:
        with watching("measuring") as report:
            left = time_all(here, benches, journal, started + seconds - _FITTED_IN, report)
            report("fitting", 1.0)
            found = answer(here, list(journal.rows.values()), left)
    except KeyboardInterrupt:
        note(f"note: {len(journal.rows)} rows are kept in {journal.path}: run again to go on")
        raise
    document = found.document()
    file.write_text(found.curve_file, encoding="utf-8")
    rows = file.with_suffix(".json")
    rows.write_text(jsonlib.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    emit(document, draw, json)
    if not left:
        journal.done()
    use = f": plan with them by `meshwright plan --hardware {file} ...`" if here.real else ""
    note(f"wrote {file} and {rows}{use}")
