"""`meshwright sensitivity`: what the step time depends on."""

from explorer.cli.options import Json, LayoutText, Plot, Question
from explorer.cli.output import emit, plot_folder, save_pictures, watching
from explorer.cli.session import chosen


def sensitivity(question: Question, layout: LayoutText = None, plot: Plot = None, json: Json = False) -> None:
    """Say what the step time depends on: an elasticity for each hardware figure and parameter."""
    request = question.request()
    folder = plot_folder(plot)
    laid_out = chosen(request, layout)
    with watching("differentiating"):
        from explorer.elasticity import sensitivity as differentiate
        from explorer.report.sensitivity import draw

        document = differentiate(request, laid_out).document()
    emit(document, draw, json)
    save_pictures(document, folder)
