"""`meshwright trace`: a recorded step taken apart, beside a prediction where one is asked for."""

from typing import Annotated

from typer import Argument, Option

from explorer.cli.options import Json, LayoutText, Question, count, text
from explorer.cli.output import emit, watching
from explorer.cli.session import chosen

TRACE = "Trace"


def trace(
    question: Question | None,
    file: Annotated[str, Argument(help="torch's JSON (.json, .json.gz) or JAX's xplane.pb.", metavar="FILE")],
    layer_pattern: Annotated[
        list[str] | None,
        Option(
            help="First kernel of a kind of layer, by its name; may be given again for others.",
            rich_help_panel=TRACE,
            metavar="NAME=REGEX",
        ),
    ] = None,
    step_pattern: Annotated[
        str | None, text("Annotations that are steps; 'step N' or 'ProfilerStep#N' if left out.", TRACE, "REGEX")
    ] = None,
    device: Annotated[int | None, count("GPU to look at; the busiest if left out.", TRACE)] = None,
    layout: LayoutText = None,
    json: Json = False,
) -> None:
    """Take a recorded step apart: layers, exposed copies, idle time; beside the prediction for a named model."""
    from explorer.traces.answer import answer
    from explorer.traces.events import TraceError
    from explorer.traces.reading import read_trace

    if question is None and layout is not None:
        raise TraceError("--layout is of a prediction: give --model, --hardware and --gpus too, or leave it out")
    request = None if question is None else question.request()
    with watching("reading"):
        read = read_trace(file)
    predicted = None
    if request is not None:
        laid_out = chosen(request, layout)
        from explorer.costing import cost

        with watching("pricing"):
            predicted = cost(request, laid_out)
    from explorer.report.trace import draw

    emit(answer(file, read, device, tuple(layer_pattern or ()), step_pattern, predicted).document(), draw, json)
