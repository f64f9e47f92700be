"""`meshwright service`: what clients of a layout see while many requests run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from explorer.cli.options import LOAD, MODEL, Json, LayoutText, Question, count, real, text
from explorer.cli.output import emit, watching
from explorer.cli.session import chosen, warm
from hw.errors import MeshwrightError

if TYPE_CHECKING:
    from explorer.request import Request
    from explorer.serving import Apart, Lengths
    from layouts.layout import Layout

APART = "Prefill on GPUs of its own"


@dataclass(frozen=True, kw_only=True)
class Subject(Question):
    """The decode instance. What is left out follows from the lengths and the engine."""

    context: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        int | None, count("Tokens of a request while it decodes; prompt and half of the answer if left out.", LOAD)
    ] = None
    chunk: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        int | None, count("Tokens of a prefill step; the engine's if left out.", LOAD, "TOKENS")
    ] = None


def service(
    subject: Subject,
    input_tokens: Annotated[int, count("Tokens of a prompt, of the longest with --shortest.", LOAD, "TOKENS")],
    output_tokens: Annotated[int, count("Tokens of an answer, of the longest with --shortest.", LOAD, "TOKENS")],
    engine: Annotated[str, text("sglang, trtllm, vllm or other.", MODEL, "ENGINE")] = "other",
    layout: LayoutText = None,
    shortest: Annotated[
        float, real("Lengths are drawn evenly from this share of the longest up; 1: all alike.", LOAD, "SHARE")
    ] = 1.0,
    prefill_layout: Annotated[
        str | None,
        text("Layout of a prefill worker; --layout's if as many GPUs, else the best.", APART, "KEY=VALUE,..."),
    ] = None,
    prefill_gpus: Annotated[int | None, count("GPUs of a prefill worker; --gpus if left out.", APART)] = None,
    prefill_workers: Annotated[int | None, count("Prefill workers.", APART)] = None,
    decode_workers: Annotated[int | None, count("Decode workers of --gpus each.", APART)] = None,
    json: Json = False,
) -> None:
    """Predict TTFT, TPOT and rate of a layout that serves many clients, and what binds."""
    if subject.concurrency is None:
        raise MeshwrightError("--concurrency is missing: say how many requests clients keep in flight")
    from explorer.report.service import draw
    from explorer.serving import make_engine, make_lengths, serve

    lengths, chosen_engine = make_lengths(input_tokens, output_tokens, shortest), make_engine(engine, subject.chunk)
    request = _request(subject, lengths, chosen_engine.chunk)
    warm()
    laid_out = chosen(request, layout)
    stated = (prefill_layout, prefill_gpus, prefill_workers, decode_workers)
    apart = None
    if any(part is not None for part in stated):
        apart = _apart(request, laid_out, lengths, *stated)
    with watching("pricing"):
        document = serve(request, laid_out, chosen_engine, lengths, apart).document()
    emit(document, draw, json)


def _request(subject: Subject, lengths: "Lengths", chunk: int) -> "Request":
    context = lengths.context if subject.context is None else subject.context
    return replace(subject, context=context, chunk=chunk).request()


def _apart(
    request: "Request",
    decode: "Layout",
    lengths: "Lengths",
    layout: str | None,
    gpus: int | None,
    workers: int | None,
    decode_workers: int | None,
) -> "Apart":
    from explorer.serving import Apart, for_prompts, prompts_of
    from layouts.text import text_of

    prompts = prompts_of(request, lengths, gpus)
    if layout is None and prompts.gpus == request.gpus:
        layout = text_of(for_prompts(decode), request.model)
    workers, decode_workers = (1 if number is None else number for number in (workers, decode_workers))
    return Apart(prompts, chosen(prompts, layout), workers, decode_workers)
