"""`meshwright calibrate`: a chip's curves adjusted to what was measured on one machine."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from explorer.cli.options import MODEL, OUTPUT, Json, Question, count, text
from explorer.cli.output import OutputError, emit, note, out_file, watching
from explorer.cli.session import warm

TRACE = "Trace"


@dataclass(frozen=True, kw_only=True)
class Subject(Question):
    """The machine, and what ran on it: a file of timed ops names all that it needs itself."""

    # a question needs both
    model: Annotated[str | None, text("What ran: preset or path.", MODEL, "NAME|PATH")] = None  # pyright: ignore
    gpus: Annotated[int | None, count("GPUs in all.", MODEL)] = None  # pyright: ignore


def calibrate(
    subject: Subject,
    from_: Annotated[
        list[str],
        Option(
            "--from",
            help="What was measured: measure/1, a profiler's trace, or a benchmark's results; may be given again.",
            rich_help_panel=MODEL,
            metavar="FILE",
        ),
    ],
    layout: Annotated[
        str | None, text("The layout that ran, as in attn_dp=2,dcp=8,ep=16.", MODEL, "KEY=VALUE,...")
    ] = None,
    engine: Annotated[
        str | None, text("Engine of a benchmark, where its results name another client.", MODEL, "NAME")
    ] = None,
    layer_pattern: Annotated[
        list[str] | None,
        Option(help="First kernel of a kind of layer in a trace.", rich_help_panel=TRACE, metavar="NAME=REGEX"),
    ] = None,
    step_pattern: Annotated[str | None, text("Annotations that are steps of a trace.", TRACE, "REGEX")] = None,
    device: Annotated[int | None, count("GPU of a trace to look at; the busiest if left out.", TRACE)] = None,
    out: Annotated[str | None, text("Write the curves here, for --hardware FILE.toml.", OUTPUT, "FILE.toml")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Write nothing.", rich_help_panel=OUTPUT)] = False,
    json: Json = False,
) -> None:
    """Adjust a chip's curves to what was measured on one machine: traces, benchmarks, timed ops."""
    if out is None and not dry_run:
        raise OutputError("--out is missing: name a file for the curves, such as my-machine.toml, or give --dry-run")
    written = None if dry_run else out_file(out, "out", (".toml",))
    if layout is not None and None in (subject.model, subject.gpus):
        raise OutputError("--layout is of what ran: give --model and --gpus too, or leave it out")
    warm()
    from explorer.calibration.answer import calibrate as adjust
    from explorer.calibration.sources import Ran, read_source
    from explorer.report.calibrate import draw
    from hw.machine import load_machine

    ran = None
    if subject.model is not None and subject.gpus is not None and layout is not None:
        request = subject.request()
        ran = Ran(request, request.layout(layout), engine, tuple(layer_pattern or ()), step_pattern, device)
    alone = (subject.hardware, subject.gpus_per_host, subject.domain)
    machine = load_machine(*alone) if ran is None else ran.request.machine
    with watching("reading"):
        observed = [seen for path in from_ for seen in read_source(path, machine, ran)]
    with watching("fitting"):
        found = adjust(machine, observed, ran)
    emit(found.document(), draw, json)
    if written is not None:
        written.write_text(found.curve_file, encoding="utf-8")
        note(f"wrote {written}: use it as --hardware {written}")
