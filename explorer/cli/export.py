"""`meshwright export`: what starts the servers of a layout."""

import os
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Option

from explorer.cli.options import OUTPUT, Json, LayoutText, Question, text
from explorer.cli.output import OutputError, emit, note, watching
from explorer.cli.session import chosen

if TYPE_CHECKING:
    from explorer.engines.export import Options

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
    out: Annotated[str | None, text("Write the files into this folder instead of stdout.", OUTPUT, "DIR")] = None,
    force: Annotated[bool, Option("--force", help="Write over files that are there.", rich_help_panel=OUTPUT)] = False,
    json: Json = False,
) -> None:
    """Write start scripts or Kubernetes manifests for a layout, read back before they are handed out."""
    options = _options(engine, engine_version, format, role, model_path, address, image)
    request = question.request()
    laid_out = chosen(request, layout)
    from explorer.engines.export import export as exported
    from explorer.engines.setup import Asked

    names = (question.hardware, question.model, question.draft, question.precision)
    asked = Asked(*names, question.gpus_per_host, question.domain)
    with watching("writing"):
        made = exported(request, laid_out, options, asked)
    if out is not None:
        _save(made.files, out, force)
    if json:
        emit(made.document(), lambda document: "", True)
        return
    if out is None:
        sys.stdout.write("\n".join(made.files.values()))
    for line in made.document()["notes"]:
        note(f"note: {line}")


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
