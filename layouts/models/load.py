"""From a name or a config.json to a Model."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from layouts.models import presets
from layouts.models.config import LARGEST_CONTEXT, Config, read_json
from layouts.models.draft import Draft
from layouts.models.drafts import block_draft, mtp_draft
from layouts.models.errors import ModelError
from layouts.models.families import FAMILIES, Body, Family
from layouts.models.forms import Forms
from layouts.models.model import Model
from layouts.models.vision import encoder_size, vision_tower
from layouts.precision import Quantization, checked_formats, parse_precision, read_precision
from layouts.shapes import ShapeError
from layouts.tensor import FORMATS, Format, Precision

R = TypeVar("R")


@dataclass(frozen=True)
class _Build:
    """What an overlay adds to a config: nothing, for a plain one."""

    draft: str = "none"
    context: int | None = None
    formats: Mapping[str, Format] = field(default_factory=lambda: MappingProxyType({}))
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    curves: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def load_model(name_or_path: str, draft: str | None = None, precision: str | None = None) -> Model:
    """The model of a preset (`kimi-k3`), a build (`kimi-k3@article`) or the path of a config.json.

    `draft`: `none`, `mtp`, the name or path of a draft config; None takes what the build says, none without one.
    `precision`: changes such as `attention=fp8,kv=fp8`. Raises ModelError or PrecisionError (both MeshwrightError) with
    one line on the input, the key and what is supported.
    """
    shipped = presets.published(name_or_path) is not None and draft in (None, "none", "mtp")
    return (_load_once if shipped else _load)(name_or_path, draft, precision)


def _load(name_or_path: str, draft: str | None, precision: str | None) -> Model:
    name, base, build = _build(name_or_path)
    path = presets.find_config(base)
    config = read_json(path)
    text = text_config(config)
    body = _checked(_family(text).read, text)
    quantization = Quantization(_quantization(config, text), config.source)
    stored, notes = read_precision(quantization, body.modules())
    drafted, draft_notes = _draft(build.draft if draft is None else draft, name, text, body, quantization, stored)
    own = {component: FORMATS[form] for component, form in body.formats.items()}
    changes = {**own, **build.formats, **parse_precision(precision or "")}
    return Model(
        name=name,
        hidden=text.size("hidden_size"),
        vocab=text.size("vocab_size"),
        context_limit=build.context or text.size(_length_key(text), most=LARGEST_CONTEXT),
        tied=text.flag("tie_word_embeddings"),
        layers=body.layers,
        draft=drafted,
        precision=stored.with_formats(changes),
        notes=(*_source_notes(path, config, build), *body.notes, *notes, *draft_notes),
        defaults=build.defaults,
        curves=build.curves,
        table_bytes=body.table_bytes,
        vision=vision_tower(config),
        encoder=encoder_size(config),
    )


_load_once = functools.lru_cache(maxsize=64)(_load)  # what ships does not change while a program runs


def _build(name_or_path: str) -> tuple[str, str, _Build]:
    """(name to show, base to look up, what the overlay adds)."""
    known = presets.published(name_or_path)
    name = known or name_or_path.strip()
    table = presets.overlay(name)
    if table is None:
        stem = pathlib.Path(name)
        of_path = stem.parent.name if stem.name == "config.json" else stem.stem
        return name if known else of_path or name, name, _Build()
    formats, defaults, curves = (table.get(key, {}) for key in ("precision", "defaults", "curves"))
    if not (isinstance(formats, Mapping) and isinstance(defaults, Mapping) and isinstance(curves, Mapping)):
        raise ModelError(f"{name}: precision, defaults and curves must be tables")
    build = _Build(
        draft=str(table.get("draft", "none")),
        context=Config(f"{name}.toml", table).size("context", most=LARGEST_CONTEXT) if "context" in table else None,
        formats=checked_formats(formats, name),
        defaults=MappingProxyType(dict(defaults)),
        curves=MappingProxyType({str(chip): str(named) for chip, named in curves.items()}),
    )
    return name, str(table["base"]), build


def _length_key(text: Config) -> str:
    """The longest context goes by either name."""
    return "model_max_length" if text.has("model_max_length") else "max_position_embeddings"


def text_config(config: Config) -> Config:
    """The language model of a multimodal config; the architecture of the wrapper counts where it names none."""
    if not config.has("text_config"):
        return config
    inner = config.section("text_config")
    return Config(config.source, {"architectures": config.values.get("architectures"), **inner.values})


def load_forms(name_or_path: str) -> Forms:
    """The arithmetic of the same model beyond its shapes, as programs need it. Raises ModelError."""
    text = text_config(read_json(presets.find_config(_build(name_or_path)[1])))
    return _checked(_family(text).forms, text)


def has_program(name_or_path: str) -> bool:
    """Whether a model can be run, and not only priced."""
    try:
        load_forms(name_or_path)
    except ModelError:
        return False
    return True


def _family(text: Config) -> Family:
    names = text.values.get("architectures")
    if not isinstance(names, list) or not names:
        raise text.error(f"key 'architectures' is missing; supported: {', '.join(FAMILIES)}")
    for name in names:
        if isinstance(name, str) and name in FAMILIES:
            return FAMILIES[name]
    raise text.error(f"architecture {names[0]!r} is not supported; supported: {', '.join(FAMILIES)}")


def _checked(read: Callable[[Config], R], text: Config) -> R:
    """What a reader makes of a config; impossible sizes are an error on its file."""
    try:
        return read(text)
    except ShapeError as error:
        raise text.error(str(error)) from None


def _quantization(config: Config, text: Config) -> object:
    """The quantisation of the text model where it has its own, else that of the whole file."""
    key = "quantization_config"
    return text.values.get(key) if text.has(key) else config.values.get(key)


def _draft(
    name: str, model_name: str, text: Config, body: Body, quantization: Quantization, stored: Precision
) -> tuple[Draft | None, tuple[str, ...]]:
    wanted = name.strip().lower()
    if wanted == "none":
        return None, ()
    if wanted == "mtp":
        return mtp_draft(text, body, quantization, stored)
    return block_draft(name.strip(), model_name, text.size("hidden_size"), text.size("vocab_size")), ()


def _source_notes(path: pathlib.Path, config: Config, build: _Build) -> tuple[str, ...]:
    """The notes on a preset are on its precision as published, so a build that sets its own drops them."""
    uncounted = config.has("vision_config") and not vision_tower(config)
    vision = ("the vision tower is not counted",) if uncounted else ()
    as_published = path.parent == presets.FOLDER and not build.formats
    return (*vision, *(presets.notes(path.name) if as_published else ()))
