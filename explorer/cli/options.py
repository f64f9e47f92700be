"""The options that commands share, one field each, and the question that they make."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from hw.errors import MeshwrightError

if TYPE_CHECKING:
    from explorer.request import Request

MODEL, LOAD, SEARCH, OUTPUT = "Model and machine", "Load", "Limits and search", "Output"


def _option(help: str, panel: str, metavar: str, parser: Callable[[str], Any] | None = None) -> Any:
    return Option(help=help, rich_help_panel=panel, metavar=metavar, parser=parser)


def _whole(text: str | int) -> int:
    """A whole number, whatever its size: `make_request` knows the bounds. Longer ones are a slip of the keyboard."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", str(text).strip()):
        raise BadParameter(f"{_short(text)} is not a whole number (of at most 18 digits)")
    return int(text)


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadParameter(f"{_short(text)} is not a number") from None


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def count(help: str, panel: str, metavar: str = "N") -> Any:
    """An option that is a whole number."""
    return _option(help, panel, metavar, _whole)


def text(help: str, panel: str, metavar: str) -> Any:
    """An option that is a word."""
    return _option(help, panel, metavar)


def real(help: str, panel: str, metavar: str) -> Any:
    """An option that is a number."""
    return _option(help, panel, metavar, _number)


ModelName = Annotated[str, _option("Preset (see `meshwright models`) or path of a config.json.", MODEL, "NAME|PATH")]
Gpus = Annotated[int, count("GPUs in all.", MODEL)]
Draft = Annotated[str | None, _option("none, mtp, or a draft's name or path.", MODEL, "NAME|PATH")]
Formats = Annotated[
    str | None, _option("Formats by component, as in attention=fp8,kv=fp8.", MODEL, "COMPONENT=FORMAT,...")
]
GpusPerHost = Annotated[int | None, count("GPUs of a host; the chip's if left out.", MODEL)]
Domain = Annotated[int | None, count("GPUs of a scale-up domain; the chip's if left out.", MODEL)]
InPlaceOf = Annotated[str | None, text("Preset or path, in place of the model that it names.", MODEL, "NAME|PATH")]
Context = Annotated[int, count("Tokens of a request.", LOAD, "TOKENS")]
VerifyWidth = Annotated[
    int | None, count("Token rows that a step verifies a request; the build's, else 1.", LOAD, "ROWS")
]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked on the command line. None where an option was left out and its default depends on the model."""

    model: ModelName
    hardware: Annotated[str, _option("Chip (see `meshwright hardware`).", MODEL, "CHIP")]
    gpus: Gpus
    draft: Draft = None
    precision: Formats = None
    gpus_per_host: GpusPerHost = None
    domain: Domain = None
    phase: Annotated[str, _option("decode or prefill.", LOAD, "PHASE")] = "decode"
    context: Context = 8192
    concurrency: Annotated[
        int | None, count("Requests that the instance serves at once; planned if left out.", LOAD, "REQUESTS")
    ] = None
    verify_width: VerifyWidth = None
    accept_length: Annotated[
        float | None, real("Tokens accepted a step and request; the build's, else 1.", LOAD, "TOKENS")
    ] = None
    chunk: Annotated[int, count("Tokens of a prefill chunk.", LOAD, "TOKENS")] = 8192
    objective: Annotated[str, _option("step, throughput, kv or gpu-seconds.", SEARCH, "OBJECTIVE")] = "step"
    max_tpot_ms: Annotated[float | None, real("Longest time of an output token, in ms.", SEARCH, "MS")] = None
    mem_fraction: Annotated[
        float | None, real("Share of free memory for weights and pools; derived if left out.", SEARCH, "SHARE")
    ] = None
    extra_slots: Annotated[
        int | None, count("Request slots beyond those that run; planned if left out.", SEARCH, "SLOTS")
    ] = None
    seed: Annotated[int, count("Seed of the search.", SEARCH)] = 0

    def request(self) -> "Request":
        """The question checked; raises MeshwrightError."""
        from explorer.request import make_request

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return make_request(values.pop("model"), values.pop("hardware"), values.pop("gpus"), **values)


Json = Annotated[bool, Option("--json", help="Print one JSON document (docs/json.md).", rich_help_panel=OUTPUT)]
Plot = Annotated[str | None, _option("Write pictures into this folder.", OUTPUT, "DIR")]
LayoutText = Annotated[
    str | None,
    _option("A layout, as in attn_dp=2,dcp=8,ep=16; the best one found if left out.", MODEL, "KEY=VALUE,..."),
]


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """A command `(question, **own options)` as a function that typer reads: the question's options, then its own.

    A command whose question may be None gets None where none of the question's options is given.
    """
    asked_first, *own = inspect.signature(command).parameters.values()
    kind = typing.get_type_hints(command)[asked_first.name]
    question, *nothing = typing.get_args(kind) or (kind,)
    hints = typing.get_type_hints(question, include_extras=True)
    fields = dataclasses.fields(question)
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default if field.name not in required else None if nothing else inspect.Parameter.empty,
            annotation=hints[field.name],
        )
        for field in fields
    ]

    def run(**options: Any) -> None:
        asked = {field.name: options.pop(field.name) for field in fields}
        missing = [name for name in required if asked[name] is None]
        said = [field.name for field in fields if field.name not in missing and asked[field.name] != field.default]
        if said and missing:
            raise MeshwrightError(f"--{missing[0]} is missing: --{said[0]} asks for a prediction, which needs it")
        command(question(**asked) if said else None, **options)

    parameters = [*shared, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
