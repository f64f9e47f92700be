"""`meshwright compare`: two layouts side by side."""

from typing import Annotated

from typer import Argument, Option

from explorer.cli.options import MODEL, Json, Plot, Question
from explorer.cli.output import OutputError, emit, plot_folder, save_pictures, watching
from explorer.cli.session import warm


def compare(
    question: Question,
    pair: Annotated[list[str] | None, Argument(help="The two layouts.", metavar="[A B]")] = None,
    layout: Annotated[
        list[str] | None,
        Option(help="A layout; give it twice, or use --against.", rich_help_panel=MODEL, metavar="KEY=VALUE,..."),
    ] = None,
    against: Annotated[
        str | None, Option(help="The layout to compare with.", rich_help_panel=MODEL, metavar="KEY=VALUE,...")
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Hold two layouts side by side: what is conserved, what is not, what moved; then time and memory line by line."""
    texts = [*(pair or ()), *(layout or ()), *([against] if against is not None else ())]
    if len(texts) != 2:
        raise OutputError(f"compare takes two layouts, not {len(texts)}: give --layout A --against B")
    request = question.request()
    folder = plot_folder(plot)
    first, second = (request.layout(text) for text in texts)
    warm()
    with watching("comparing"):
        from explorer.comparison import compare as hold
        from explorer.report.compare import draw

        document = hold(request, first, second).document()
    emit(document, draw, json)
    save_pictures(document, folder)
