"""`meshwright memory`: where the memory of a GPU goes."""

from explorer.cli.options import Json, LayoutText, Plot, Question
from explorer.cli.output import emit, plot_folder, save_pictures, watching
from explorer.cli.session import chosen


def memory(question: Question, layout: LayoutText = None, plot: Plot = None, json: Json = False) -> None:
    """Lay out the memory of one GPU: every line with its rule, and what it admits."""
    request = question.request()
    folder = plot_folder(plot)
    laid_out = chosen(request, layout)
    with watching("counting bytes"):
        from explorer.ledger import ledger
        from explorer.report.memory import draw

        document = ledger(request, laid_out).document()
    emit(document, draw, json)
    save_pictures(document, folder)
