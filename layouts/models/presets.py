"""The models that ship with the package: published configs, builds of them (overlays), drafts, and their sources."""

import difflib
import functools
import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Final

from layouts.models.errors import ModelError

FOLDER: Final = pathlib.Path(__file__).with_name("presets")
DRAFTS: Final = FOLDER / "drafts"
_LONGEST: Final = 200  # letters of a name that an error repeats


@functools.cache
def index() -> Mapping[str, Mapping[str, object]]:
    """The tables of SOURCES.toml: `aliases` (name -> preset) and, by file name, origin, licence and notes."""
    return tomllib.loads((FOLDER / "SOURCES.toml").read_text(encoding="utf-8"))


@functools.cache
def preset_names() -> tuple[str, ...]:
    """Models (`kimi-k3`) and builds of them (`kimi-k3@article`), aliases left out."""
    return tuple(sorted([p.stem for p in FOLDER.glob("*.json")] + [p.stem for p in FOLDER.glob("*@*.toml")]))


@functools.cache
def draft_names() -> tuple[str, ...]:
    """Draft configs (`dspark-kimi-k3`)."""
    return tuple(sorted(p.stem for p in DRAFTS.glob("*.json")))


def aliases() -> Mapping[str, str]:
    """Short names of presets."""
    return {name: str(preset) for name, preset in index()["aliases"].items()}


def notes(file_name: str) -> tuple[str, ...]:
    """What is known about one preset file beyond what it says itself."""
    found = index().get(file_name, {}).get("notes", ())
    return tuple(map(str, found)) if isinstance(found, list) else ()


def overlay(name: str) -> Mapping[str, object] | None:
    """The build `model@variant` as a table (base, draft, precision, defaults); None if `name` is no overlay."""
    if "@" not in name or name not in preset_names():
        return None
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def base_of(name: str) -> str:
    """The preset that a build is one of; any other name as it is."""
    table = overlay(published(name) or name)
    return name if table is None else str(table["base"])


@functools.cache
def checkpoints() -> Mapping[str, str]:
    """Published checkpoints, in lower case and without their publisher, and the preset or build that each one is."""
    found: dict[str, str] = {}
    for file, about in index().items():
        listed = about.get("published", ())
        found |= {str(name).lower(): file.rpartition(".")[0] for name in (listed if isinstance(listed, list) else ())}
    return found


def published(name: str) -> str | None:
    """The preset or build that a name means: its own or a short one, or that of a published checkpoint, given with its
    publisher (`org/Name`) or as the folder where it lies (`/models/Name`). None where nothing is known of it.

    A folder or file that exists is nobody's checkpoint but its owner's: its config.json counts.
    """
    plain = name.strip().lower()
    known = aliases().get(plain, plain)
    if known in preset_names():
        return known
    if looks_like_path(name.strip()) and os.path.exists(_local(name)):
        return None
    last = plain.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return checkpoints().get(last) or aliases().get(last, last if last in preset_names() else None)


def find_config(name: str) -> pathlib.Path:
    """The config.json of a preset, an alias, a published checkpoint, a path to one or to the folder that holds one;
    raises ModelError."""
    known = published(name)
    if known is not None:
        return FOLDER / f"{base_of(known)}.json"
    if looks_like_path(name):
        path = _local(name)
        if os.path.exists(path) or path.suffix == ".json":  # Path.exists raises where a name is too long
            return path / "config.json" if os.path.isdir(path) else path
    raise unknown("model", name, (*preset_names(), *aliases()), "the path of a config.json", tuple(checkpoints()))


def _local(name: str) -> pathlib.Path:
    return pathlib.Path(os.path.expanduser(name.strip()))  # leaves ~nobody alone where Path.expanduser raises


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path."""
    return name.endswith(".json") or "/" in name or "\\" in name or name in (".", "..")


def unknown(what: str, name: str, known: tuple[str, ...], otherwise: str, more: tuple[str, ...] = ()) -> ModelError:
    """The error for a name that is not there: the nearest one (of `more`, too, which are not listed), all of them, and
    what else would do."""
    last = name.lower().replace("\\", "/").rstrip("/").rpartition("/")[2]
    near = difflib.get_close_matches(last[:_LONGEST], (*known, *more), 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    return ModelError(f"unknown {what} {shown!r}{hint} Known: {', '.join(known)}; or give {otherwise}")
