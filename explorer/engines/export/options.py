"""What an export is to be."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from explorer.engines.command.launch import EngineName
from explorer.engines.export.errors import ExportError
from layouts.serving.reserve import Role

Kind = TypeVar("Kind", bound=StrEnum)


class Form(StrEnum):
    """What the files are."""

    SCRIPT = "script"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Options:
    """`version`: the newest whose flags are known where left out. `role`: None for what the question's phase is, both
    phases for one of decode. `model_path`: where the engine finds the weights, the published name where left out.
    `address`: of the first host."""

    engine: EngineName
    version: str | None = None
    form: Form = Form.SCRIPT
    role: Role | None = None
    model_path: str | None = None
    address: str | None = None
    image: str | None = None


def choice(name: str, value: str, kind: type[Kind]) -> Kind:
    """One of a few words; ExportError for another."""
    word = value.strip().lower()
    if word not in tuple(kind):
        raise ExportError(f"{name} {value[:40]!r} is none: choose one of {', '.join(kind)}")
    return kind(word)
