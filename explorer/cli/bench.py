"""`meshwright bench`: what a benchmark measured beside what is predicted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from explorer.cli.options import MODEL, Json, Question, count, text
from explorer.cli.output import emit, watching
from explorer.cli.session import warm
from hw.errors import MeshwrightError

if TYPE_CHECKING:
    from explorer.engines.bench.subject import Options


@dataclass(frozen=True, kw_only=True)
class Subject(Question):
    """The machine, and what ran on it: a file in which the server says so needs the machine alone."""

    # a question needs both
    model: Annotated[str | None, text("What ran: preset or path.", MODEL, "NAME|PATH")] = None  # pyright: ignore
    gpus: Annotated[int | None, count("GPUs in all.", MODEL)] = None  # pyright: ignore


def bench(
    subject: Subject | None,
    files: Annotated[
        list[str],
        Argument(
            help="Results of sglang.bench_serving, bench_one_batch(_server), vllm bench serve or vllm bench forward.",
            metavar="FILE...",
        ),
    ],
    layout: Annotated[
        str | None, text("The layout that ran, as in attn_dp=2,dcp=8,ep=16.", MODEL, "KEY=VALUE,...")
    ] = None,
    engine: Annotated[str | None, text("Engine, where the results name another client.", MODEL, "NAME")] = None,
    json: Json = False,
) -> None:
    """Set what a benchmark measured beside what is predicted for the model, machine and layout that ran."""
    if subject is None and (layout, engine) != (None, None):
        raise MeshwrightError("--hardware is missing: name the chip that ran, or leave --layout and --engine out")
    from explorer.engines.bench.reading import read_results
    from explorer.report.bench import draw

    with watching("reading"):
        results = [read_results(file) for file in files]
    options = None if subject is None else _options(subject, layout, engine)
    warm()
    from explorer.engines.bench.answer import bench as compare

    with watching("pricing"):
        document = compare(results, options).document()
    emit(document, draw, json)


def _options(subject: Subject, layout: str | None, engine: str | None) -> "Options":
    from explorer.engines.bench.subject import Options
    from explorer.engines.setup import Asked
    from explorer.service.engine import load_engine

    if engine is not None:
        load_engine(engine)
    shared = ("model", "draft", "precision", "gpus_per_host", "domain")
    asked = Asked(subject.hardware, **{name: getattr(subject, name) for name in shared})
    if layout is None and subject.gpus is None:
        return Options(asked, engine=engine)
    stated = {"--model": subject.model, "--gpus": subject.gpus, "--layout": layout}
    missing = [name for name, value in stated.items() if value is None]
    if missing or layout is None:
        raise MeshwrightError(
            f"{missing[0]} is missing: give --model, --gpus and --layout, or neither of the last two where files say it"
        )
    request = subject.request()
    return Options(asked, request, request.layout(layout), engine)
