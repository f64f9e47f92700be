"""The application: its commands, and the options that stand before them."""

import importlib.metadata
from typing import Annotated

import typer

from explorer.cli import catalogue
from explorer.cli.audit import audit
from explorer.cli.bench import bench
from explorer.cli.calibrate import calibrate
from explorer.cli.cases import cases
from explorer.cli.check import check
from explorer.cli.compare import compare
from explorer.cli.cost import cost
from explorer.cli.export import export
from explorer.cli.log import log
from explorer.cli.measure import measure
from explorer.cli.memory import memory
from explorer.cli.options import asking
from explorer.cli.plan import plan
from explorer.cli.run import run
from explorer.cli.sensitivity import sensitivity
from explorer.cli.service import service
from explorer.cli.trace import trace

app = typer.Typer(
    name="meshwright",
    help="How should this model be cut over these GPUs, for this load?",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (plan, cost, memory, compare, sensitivity, audit, run, trace, calibrate, service, bench, export):
    app.command()(asking(command))
app.command()(measure)
app.command()(check)
app.command()(log)
app.command()(cases)
app.command()(catalogue.models)
app.command()(catalogue.hardware)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            number = importlib.metadata.version("meshwright")
        except importlib.metadata.PackageNotFoundError:
            number = "(not installed)"
        typer.echo(f"meshwright {number}")
        raise typer.Exit


@app.callback()
def before(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """How should this model be cut over these GPUs, for this load?"""
