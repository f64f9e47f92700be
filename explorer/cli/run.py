"""`meshwright run`: a layout as a program, on GPUs or on simulated devices."""

import dataclasses
import pathlib
import tempfile
from dataclasses import dataclass
from typing import Annotated, Final

from typer import Exit, Option

from explorer.cli.devices import run_here
from explorer.cli.options import LOAD, MODEL, OUTPUT, Json, count, text
from explorer.cli.output import emit, watching
from explorer.cli.session import warm

FAILS: Final = 1  # exit status: a finding, not a mistake of the user's


@dataclass(frozen=True, kw_only=True)
class RunQuestion:
    """What is to run, and on what."""

    model: Annotated[str, text("Preset, config.json, or a folder with weights too.", MODEL, "NAME|DIR")]
    gpus: Annotated[int | None, count("Devices to use; all that are here if left out.", MODEL)] = None
    simulate: Annotated[int | None, count("Simulate so many devices on the CPU.", MODEL)] = None
    distributed: Annotated[
        bool,
        Option(
            "--distributed",
            help="One process of several (SLURM, Open MPI, Kubernetes, or JAX_COORDINATOR_ADDRESS and friends).",
            rich_help_panel=MODEL,
        ),
    ] = False
    scale: Annotated[str, text("full, or tiny: the same structure, to run in seconds.", MODEL, "SIZE")] = "full"
    layers: Annotated[int | None, count("Keep only the first layers.", MODEL)] = None
    experts: Annotated[int | None, count("Keep only so many experts a layer.", MODEL)] = None
    hardware: Annotated[
        str | None, text("Chip to predict for; found by the device's name if left out.", MODEL, "CHIP")
    ] = None
    dtype: Annotated[str | None, text("float32 or bfloat16; float32 on CPUs if left out.", MODEL, "DTYPE")] = None
    requests: Annotated[int, count("Requests in each attention group.", LOAD)] = 2
    prompt_tokens: Annotated[int, count("Random tokens of each prompt.", LOAD, "TOKENS")] = 16
    tokens: Annotated[int, count("Tokens to generate behind each prompt.", LOAD, "TOKENS")] = 16
    verify_width: Annotated[int, count("Rows a request and step: a look-up drafts all but one.", LOAD, "ROWS")] = 1
    context: Annotated[
        int | None, count("Tokens that a request has room for; what it needs if left out.", LOAD, "TOKENS")
    ] = None
    seed: Annotated[int, count("Seed of prompts and pseudo-random weights.", LOAD)] = 0


def run(
    question: RunQuestion,
    layout: Annotated[
        str, Option(help="A layout, as in attn_dp=2,dcp=8,ep=16.", rich_help_panel=MODEL, metavar="KEY=VALUE,...")
    ],
    check: Annotated[
        bool, Option("--check", help="Hold text and logits against one device.", rich_help_panel=OUTPUT)
    ] = False,
    json: Json = False,
) -> None:
    """Run a layout: generate text with it, time its step, and hold it against one device."""
    asked = dataclasses.asdict(question)
    run_here(asked.pop("simulate"), asked.pop("distributed"))
    warm()
    with watching("running") as report, tempfile.TemporaryDirectory() as folder:
        from explorer.report.run import draw
        from explorer.running import first_process, make_run_request
        from explorer.running import run as run_layout

        request = make_run_request(asked.pop("model"), layout, pathlib.Path(folder), **asked)
        ran = run_layout(request, check, report)
    if first_process():
        emit(ran.document(), draw, json)
    if ran.checked is not None and not ran.checked.passes:
        raise Exit(FAILS)
