"""`meshwright cases`: reports of practitioners beside what is predicted."""

import json as jsonlib
import sys
from typing import Annotated

from typer import Argument, Option

from explorer.cli.options import Json
from explorer.cli.output import stdout_console, watching
from explorer.cli.session import warm


def cases(
    folder: Annotated[str, Argument(help="Folder of case files (*.toml); docs/cases.md has the form.", metavar="DIR")],
    only: Annotated[list[str] | None, Option("--only", help="Ids of cases to run.", metavar="ID")] = None,
    json: Json = False,
) -> None:
    """Run a folder of public reports: every reported figure beside the predicted one."""
    from explorer.cases.reading import chosen, read_cases

    found = chosen(read_cases(folder), only or ())
    warm()
    from explorer.cases.run import run_cases
    from explorer.report.cases import draw

    with watching("running"):
        rows = [result.document() for result in run_cases(found)]
    if json:
        sys.stdout.write(jsonlib.dumps(rows, indent=2, allow_nan=False) + "\n")
    else:
        stdout_console().print(draw(rows))
