"""`meshwright cost`: where the time of a step goes."""

from typing import Annotated

from explorer.cli.options import MODEL, OUTPUT, Json, LayoutText, Plot, Question, text
from explorer.cli.output import emit, note, plot_folder, save_pictures, trace_file, watching
from explorer.cli.session import chosen


def cost(
    question: Question,
    layout: LayoutText = None,
    plot: Plot = None,
    trace: Annotated[
        str | None, text("Write the step for chrome://tracing and Perfetto.", OUTPUT, "FILE.json[.gz]")
    ] = None,
    op_tables: Annotated[
        str | None,
        text("Measured op tables in place of the curves: sglang, trtllm or vllm.", MODEL, "ENGINE"),
    ] = None,
    json: Json = False,
) -> None:
    """Price one step of a layout: ops, streams, critical path."""
    request = question.request()
    tables = None
    if op_tables is not None:
        from hw.tables import installed

        tables = installed(request.machine.name, op_tables)
    folder, file = plot_folder(plot), trace_file(trace)
    laid_out = chosen(request, layout)
    with watching("pricing"):
        from explorer.costing import cost_of
        from explorer.priced import priced
        from explorer.report.cost import draw
        from explorer.tabled import tabled

        found = priced(request, laid_out)
        found = found if tables is None else tabled(found, tables)
        document = cost_of(found).document()
    emit(document, draw, json)
    save_pictures(document, folder)
    if file is not None:
        from explorer.traces.chrome import write_chrome
        from explorer.traces.export import predicted_document

        write_chrome(predicted_document(found), file)
        note(f"wrote {file}")
