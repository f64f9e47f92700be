"""`meshwright export`: what starts the servers of a layout."""

import os
import pathlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Option

from explorer.cli.options import OUTPUT, Json, LayoutText, Question, count, text
from explorer.cli.output import OutputError, emit_all, note, watching
from explorer.cli.service import APART
from explorer.cli.session import chosen, planned
from hw.errors import MeshwrightError

if TYPE_CHECKING:
    from explorer.engines.export import Export, Options
    from explorer.request import Request
    from layouts.layout import Layout

ENGINE = "Engine"


def export(
    question: Question,
    engine: Annotated[str, text("sglang or vllm.", ENGINE, "ENGINE")],
    engine_version: Annotated[
        str | None, text("Version whose flags to write; the newest known if left out.", ENGINE, "VERSION")
    ] = None,
    format: Annotated[str, text("script or kubernetes.", ENGINE, "FORMAT")] = "script",
    role: Annotated[
        str | None, text("unified, prefill or decode; what --phase says if left out.", ENGINE, "ROLE")
    ] = None,
    layout: LayoutText = None,
    model_path: Annotated[
        str | None, text("Where the engine finds the weights; the published name if left out.", ENGINE, "NAME|DIR")
    ] = None,
    address: Annotated[
        str | None, text("Of the first host, in scripts for several; $MASTER_ADDR if left out.", ENGINE, "HOST")
    ] = None,
    image: Annotated[
        str | None, text("Container image; the engine's own of that version if left out.", ENGINE, "IMAGE")
    ] = None,
    prefill_layout: Annotated[
        str | None, text("Layout of servers for prompts alone; the best if left out.", APART, "KEY=VALUE,...")
    ] = None,
    prefill_gpus: Annotated[int | None, count("GPUs of a server for prompts; --gpus if left out.", APART)] = None,
    out: Annotated[str | None, text("Write the files into this folder instead of stdout.", OUTPUT, "DIR")] = None,
    force: Annotated[bool, Option("--force", help="Write over files that are there.", rich_help_panel=OUTPUT)] = False,
    json: Json = False,
) -> None:
    """Write start scripts or Kubernetes manifests for a layout, read back before they are handed out."""
    apart = prefill_layout is not None or prefill_gpus is not None
    options = _options(
        engine, engine_version, format, role or ("decode" if apart else None), model_path, address, image
    )
    made = [_made(question, layout, options)]
    if apart:
        prompts = replace(question, phase="prefill", gpus=question.gpus if prefill_gpus is None else prefill_gpus)
        made.append(_made(prompts, prefill_layout, replace(options, role=None)))
    files = {name: content for each in made for name, content in each.files.items()}
    if out is not None:
        _save(files, out, force)
    documents = [each.document() for each in made]
    if json:
        emit_all(documents, lambda document: "", True)
        return
    if out is None:
        sys.stdout.write("\n".join(files.values()))
        sys.stdout.flush()
    for line in dict.fromkeys(line for document in documents for line in document["notes"]):
        note(f"note: {line}")


def _made(question: Question, layout: str | None, options: "Options") -> "Export":
    """The export of the layout that was named, or else of the best one."""
    from explorer.engines.export import export as exported
    from explorer.engines.setup import Asked

    request, laid_out = _asked(question, layout)
    names = (question.hardware, question.model, question.draft, question.precision)
    with watching("writing"):
        return exported(request, laid_out, options, Asked(*names, question.gpus_per_host, question.domain))


def _asked(question: Question, layout: str | None) -> "tuple[Request, Layout]":
    """The question with the requests that a server is to run: those asked for, or those of a plan that chose them."""
    request = question.request()
    if question.concurrency is not None or request.prefill:
        return request, chosen(request, layout)
    if layout is not None or request.concurrency is not None:
        raise MeshwrightError(
            "--concurrency is missing: say how many requests run at once, or let --objective throughput plan them"
        )
    best = planned(request)["best"]
    note(f"note: the best that was found: {best['layout_text']} at concurrency {best['concurrency']}")
    return replace(request, concurrency=best["concurrency"]), request.layout(best["layout_text"])


def _options(
    engine: str,
    version: str | None,
    form: str,
    role: str | None,
    model_path: str | None,
    address: str | None,
    image: str | None,
) -> "Options":
    """The options checked; raises MeshwrightError for a word that is none of its choices."""
    from explorer.engines.command import EngineName
    from explorer.engines.export import Form, Options, choice
    from layouts.serving.reserve import Role

    return Options(
        engine=choice("engine", engine, EngineName),
        version=version,
        form=choice("format", form, Form),
        role=None if role is None else choice("role", role, Role),
        model_path=model_path,
        address=address,
        image=image,
    )


def _save(files: Mapping[str, str], folder: str, force: bool) -> None:
    """Write all files, or none where one is there already."""
    place = pathlib.Path(os.path.expanduser(folder))
    there = [name for name in files if os.path.lexists(place / name)]
    if there and not force:
        raise OutputError(f"out {folder!r}: {there[0]} is there already; give another folder, or --force")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            file = place / name
            file.write_text(content, encoding="utf-8")
            if name.endswith(".sh"):
                file.chmod(0o755)
            note(f"wrote {file}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"out {folder!r}: cannot write there ({reason}); give a folder you may write to") from None
