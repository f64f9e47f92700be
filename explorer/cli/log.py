"""`meshwright log`: a start-up log beside the ledger, or two of them side by side."""

from typing import Annotated

from typer import Argument

from explorer.cli.options import MODEL, Domain, Draft, Formats, GpusPerHost, InPlaceOf, Json, text
from explorer.cli.output import emit, watching
from explorer.cli.session import warm
from hw.errors import MeshwrightError

OTHER = "Second log"


def log(
    file: Annotated[str, Argument(help="What SGLang or vLLM wrote from its launch until it serves.", metavar="FILE")],
    hardware: Annotated[str | None, text("Chip that ran; without it the log is only read.", MODEL, "CHIP")] = None,
    command: Annotated[
        str | None, text("The launch, where the log does not print it (a command or a file).", MODEL, "COMMAND|FILE")
    ] = None,
    model: InPlaceOf = None,
    draft: Draft = None,
    precision: Formats = None,
    gpus_per_host: GpusPerHost = None,
    domain: Domain = None,
    against: Annotated[str | None, text("Another log, to set beside this one.", OTHER, "FILE")] = None,
    against_command: Annotated[
        str | None, text("The launch of the other log, where it does not print it.", OTHER, "COMMAND|FILE")
    ] = None,
    json: Json = False,
) -> None:
    """Hold a start-up log of SGLang or vLLM against the ledger, line by line; or two logs side by side."""
    if hardware is None and any(option is not None for option in (command, model, draft, precision, against_command)):
        raise MeshwrightError("--hardware is missing: without the chip that ran nothing can be predicted")
    if against_command is not None and against is None:
        raise MeshwrightError("--against-command is of a second log: name it with --against, or leave it out")
    from explorer.engines.logs.reading import read_log

    with watching("reading"):
        logs = [(name, read_log(name)) for name in (file, against) if name is not None]
    warm()
    from explorer.cli.check import the_launch
    from explorer.engines.logs.reconcile import document, reconcile
    from explorer.engines.setup import Asked, setup_of
    from explorer.report.log import draw

    asked = None if hardware is None else Asked(hardware, model, draft, precision, gpus_per_host, domain)
    with watching("pricing"):
        found = []
        for (name, read), launch in zip(logs, (command, against_command), strict=False):
            setup = None if launch is None or asked is None else setup_of(the_launch(launch), asked)
            found.append(reconcile(name, read, asked, setup))
        result = document(tuple(found))
    emit(result, draw, json)
