"""`meshwright audit`: whether the cost model and the program of a step say the same."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from typer import Exit, Option

from explorer.cli import options
from explorer.cli.options import LOAD, MODEL, Json, count
from explorer.cli.output import emit, watching
from explorer.cli.session import warm

if TYPE_CHECKING:
    from explorer.auditing import AuditRequest

DIFFERS: Final = 1  # exit status: a finding, not a mistake of the user's


@dataclass(frozen=True, kw_only=True)
class AuditQuestion:
    """What is asked of an audit, which needs no chip and no search."""

    model: options.ModelName
    gpus: options.Gpus
    draft: options.Draft = None
    precision: options.Formats = None
    gpus_per_host: Annotated[int, count("GPUs of a host.", MODEL)] = 8
    domain: Annotated[int | None, count("GPUs of a scale-up domain; a host's if left out.", MODEL)] = None
    context: options.Context = 8192
    concurrency: Annotated[int, count("Requests that the instance serves at once.", LOAD, "REQUESTS")] = 64
    verify_width: options.VerifyWidth = None

    def request(self) -> "AuditRequest":
        """The question checked; raises MeshwrightError."""
        from explorer.auditing import make_audit_request

        return make_audit_request(**dataclasses.asdict(self))


def audit(
    question: AuditQuestion,
    layout: Annotated[
        str, Option(help="A layout, as in attn_dp=2,dcp=8,ep=16.", rich_help_panel=MODEL, metavar="KEY=VALUE,...")
    ],
    json: Json = False,
) -> None:
    """Hold the cost model against the program of one decode step: exchanges to the byte, and FLOPs."""
    request = question.request()
    laid_out = request.layout(layout)
    warm()
    with watching("tracing"):
        from explorer.auditing import audit as hold
        from explorer.report.audit import draw

        found = hold(request, laid_out)
    emit(found.document(), draw, json)
    if not found.agrees:
        raise Exit(DIFFERS)
