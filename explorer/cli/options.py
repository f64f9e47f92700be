"""The options that all commands share, one field each, and the question that they make."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from explorer.request import Request

MODEL, LOAD, SEARCH, OUTPUT = "Model and machine", "Load", "Limits and search", "Output"


def _option(help: str, panel: str, metavar: str | None = None) -> Any:
    return Option(help=help, rich_help_panel=panel, metavar=metavar, show_default=True)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked on the command line. None where an option was left out and its default depends on the model."""

    model: Annotated[str, _option("Preset (see `meshwright models`) or path of a config.json.", MODEL, "NAME|PATH")]
    hardware: Annotated[str, _option("Chip (see `meshwright hardware`).", MODEL, "CHIP")]
    gpus: Annotated[int, _option("GPUs in all.", MODEL, "N")]
    draft: Annotated[str | None, _option("none, mtp, or a draft's name or path.", MODEL, "NAME|PATH")] = None
    precision: Annotated[
        str | None, _option("Formats by component, as in attention=fp8,kv=fp8.", MODEL, "COMPONENT=FORMAT,...")
    ] = None
    gpus_per_host: Annotated[int | None, _option("GPUs of a host; the chip's if left out.", MODEL, "N")] = None
    domain: Annotated[int | None, _option("GPUs of a scale-up domain; the chip's if left out.", MODEL, "N")] = None
    phase: Annotated[str, _option("decode or prefill.", LOAD, "PHASE")] = "decode"
    context: Annotated[int, _option("Tokens of a request.", LOAD, "TOKENS")] = 8192
    concurrency: Annotated[
        int | None, _option("Requests that the instance serves at once; planned if left out.", LOAD, "REQUESTS")
    ] = None
    verify_width: Annotated[
        int | None, _option("Token rows that a step verifies a request; the build's, else 1.", LOAD, "ROWS")
    ] = None
    accept_length: Annotated[
        float | None, _option("Tokens accepted a step and request; the build's, else 1.", LOAD, "TOKENS")
    ] = None
    chunk: Annotated[int, _option("Tokens of a prefill chunk.", LOAD, "TOKENS")] = 8192
    objective: Annotated[str, _option("step, throughput, kv or gpu-seconds.", SEARCH, "OBJECTIVE")] = "step"
    max_tpot_ms: Annotated[float | None, _option("Longest time of an output token, in ms.", SEARCH, "MS")] = None
    mem_fraction: Annotated[
        float | None, _option("Share of free memory for weights and pools; derived if left out.", SEARCH, "SHARE")
    ] = None
    extra_slots: Annotated[
        int | None, _option("Request slots beyond those that run; planned if left out.", SEARCH, "SLOTS")
    ] = None
    seed: Annotated[int, _option("Seed of the search.", SEARCH, "N")] = 0

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
    """A command `(question, **own options)` as a function that typer reads: the question's options, then its own."""
    hints = typing.get_type_hints(Question, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(Question)
    ]

    def run(**options: Any) -> None:
        asked = {field.name: options.pop(field.name) for field in dataclasses.fields(Question)}
        command(Question(**asked), **options)

    parameters = [*shared, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
