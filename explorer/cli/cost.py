"""`meshwright cost`: where the time of a step goes."""

from explorer.cli.options import Json, LayoutText, Plot, Question
from explorer.cli.output import emit, plot_folder, save_pictures, watching
from explorer.cli.session import chosen


def cost(question: Question, layout: LayoutText = None, plot: Plot = None, json: Json = False) -> None:
    """Price one step of a layout: ops, streams, critical path."""
    request = question.request()
    folder = plot_folder(plot)
    laid_out = chosen(request, layout)
    with watching("pricing"):
        from explorer.costing import cost as price
        from explorer.report.cost import draw

        document = price(request, laid_out).document()
    emit(document, draw, json)
    save_pictures(document, folder)
