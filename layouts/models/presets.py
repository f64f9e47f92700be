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
    table = overlay(name.strip().lower())
    return name if table is None else str(table["base"])


def find_config(name: str) -> pathlib.Path:
    """The config.json of a preset, an alias, a path to one or to the folder that holds one; raises ModelError."""
    known = aliases().get(name.lower(), name.lower())
    if known in preset_names() and "@" not in known:
        return FOLDER / f"{known}.json"
    if looks_like_path(name):
        path = pathlib.Path(os.path.expanduser(name))  # leaves ~nobody alone where Path.expanduser raises
        return path / "config.json" if os.path.isdir(path) else path
    raise unknown("model", name, (*preset_names(), *aliases()), "the path of a config.json")


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path."""
    return name.endswith(".json") or "/" in name or "\\" in name or name in (".", "..")


def unknown(what: str, name: str, known: tuple[str, ...], otherwise: str) -> ModelError:
    """The error for a name that is not there: the nearest one, all of them, and what else would do."""
    near = difflib.get_close_matches(name.lower(), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ModelError(f"unknown {what} {name!r}{hint} Known: {', '.join(known)}; or give {otherwise}")
