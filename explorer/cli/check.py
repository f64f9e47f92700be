"""`meshwright check`: a launch command, understood and held against rules, memory and load."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from explorer.cli.options import LOAD, MODEL, Domain, Draft, Formats, GpusPerHost, InPlaceOf, Json, count, real, text
from explorer.cli.output import emit_all, watching
from explorer.cli.session import warm
from hw.errors import MeshwrightError

if TYPE_CHECKING:
    from explorer.engines.command import Launch

# What differs between the hosts of one server.
_OF_A_HOST = frozenset(
    {
        "node_rank",
        "dist_init_addr",
        "nccl_init_addr",
        "host",
        "port",
        "master_addr",
        "headless",
        "data_parallel_start_rank",
    }
)
_LARGEST = 16 << 20  # bytes of a command on standard input


def check(
    command: Annotated[
        str,
        Argument(
            help="A launch command in quotes, a file that holds one (script, YAML, server_info, Dockerfile, manifest), "
            "or - for standard input. Nothing in it is ever run.",
            metavar="COMMAND|FILE|-",
        ),
    ],
    hardware: Annotated[str, text("Chip that it runs on (see `meshwright hardware`).", MODEL, "CHIP")],
    model: InPlaceOf = None,
    draft: Draft = None,
    precision: Formats = None,
    gpus_per_host: GpusPerHost = None,
    domain: Domain = None,
    input_tokens: Annotated[
        int | None, count("Tokens of a prompt; 4096 if left out, or what the server takes.", LOAD, "TOKENS")
    ] = None,
    output_tokens: Annotated[
        int | None, count("Tokens of an answer; 1024 if left out, or what the server takes.", LOAD, "TOKENS")
    ] = None,
    concurrency: Annotated[
        int | None, count("Requests in flight on the server; as many as run if left out.", LOAD, "REQUESTS")
    ] = None,
    accept_length: Annotated[
        float | None, real("Tokens accepted a step and request; the build's, else 1.", LOAD, "TOKENS")
    ] = None,
    advise: Annotated[bool, Option("--advise/--no-advise", help="Look for better commands.")] = True,
    json: Json = False,
) -> None:
    """Check a launch command of SGLang or vLLM: its layout, rules, memory, latency, waste, and a better one."""
    launches = distinct(launches_of(command))
    warm()
    from explorer.engines.check import Served
    from explorer.engines.check import check as checked
    from explorer.engines.setup import Asked
    from explorer.report.check import draw

    asked = Asked(
        hardware, model, draft, precision, gpus_per_host, domain, requests=concurrency, accept_length=accept_length
    )
    served = Served(input_tokens, output_tokens, concurrency)
    with watching("checking"):
        documents = [checked(launch, asked, served, advise).document() for launch in launches]
    emit_all(documents, draw, json)


def distinct(launches: "Sequence[Launch]") -> "list[Launch]":
    """One launch of each server: hosts of one say the same but for their own rank and its address."""
    kept: dict[str, Launch] = {}
    for launch in launches:
        said = {name: value for name, value in launch.values.items() if name not in _OF_A_HOST}
        kept.setdefault(repr((launch.engine, launch.model, sorted(said.items()), sorted(launch.env.items()))), launch)
    return list(kept.values())


def the_launch(command: str) -> "Launch":
    """The one server that a command or file starts."""
    launches = distinct(launches_of(command))
    if len(launches) > 1:
        places = ", ".join(launch.source for launch in launches[:4])
        raise MeshwrightError(f"command starts {len(launches)} servers ({places}): give the one whose log this is")
    return launches[0]


def launches_of(command: str) -> "Sequence[Launch]":
    """The launches of a command, of a file, or of standard input."""
    from explorer.engines.command import read_launch_file, read_launches

    if command == "-":
        return read_launches(sys.stdin.read(_LARGEST + 1), "standard input")
    return read_launch_file(command) if _is_file(command) else read_launches(command)


def _is_file(text: str) -> bool:
    """Whether the text can only be meant as a file: it is there, or it is one word that looks like a path."""
    one_word = len(text.split()) == 1 and not text.startswith("-")
    return one_word and len(text) < 4096 and "\0" not in text and (os.path.exists(text) or "/" in text or "." in text)
