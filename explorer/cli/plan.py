"""`meshwright plan`: the best layout for a load."""

from explorer.cli.options import Json, Plot, Question
from explorer.cli.output import emit, plot_folder, save_pictures
from explorer.cli.session import planned


def plan(question: Question, plot: Plot = None, json: Json = False) -> None:
    """Find the best layout for a load by gradient search, and hold it against every valid layout."""
    request = question.request()
    folder = plot_folder(plot)
    document = planned(request)
    from explorer.report.plan import draw

    emit(document, draw, json)
    save_pictures(document, folder)
