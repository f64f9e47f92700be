"""The text form of a layout: `attn_dp=2,dcp=8,ep=16`. What can be derived is left out; parse and print are inverse."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

from hw.errors import MeshwrightError
from layouts.layout import KEYS, Layout, ShardedLayers, resolve
from layouts.models.model import Model

_RANGE: Final = re.compile(r"(\d+)-(\d+)(\+draft)?")
_LARGEST: Final = 1 << 20
_BY_NAME: Final = {key.name: key for key in KEYS}


class LayoutTextError(MeshwrightError):
    """The text names no layout."""


def parse(text: str, gpus: int, model: Model) -> Layout:
    """Layout of `gpus` GPUs from its text; raises LayoutTextError for what cannot be read, whatever the rules say."""
    return resolve(parse_keys(text), gpus, model)


def parse_keys(text: str) -> dict[str, int | str | ShardedLayers]:
    """Only what the text names, nothing derived."""
    keys: dict[str, int | str | ShardedLayers] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            hint = f"did you mean {near[0]}?" if near else f"keys: {', '.join(_BY_NAME)}"
            raise LayoutTextError(f"layout key {name!r} is unknown: {hint}")
        if not equals or not value:
            raise LayoutTextError(f"layout key {name} has no value: write {name}=VALUE")
        if name in keys:
            raise LayoutTextError(f"layout key {name} is given twice: keep one")
        keys[name] = _value(name, value)
    return keys


def text_of(layout: Layout, model: Model) -> str:
    """A short text that parses back to the layout on the same number of GPUs; attn_dp is always in it, since how
    requests are cut is what people look for first."""
    defaults = {key.name: getattr(layout, key.name) for key in KEYS}
    kept: Mapping[str, int | str | ShardedLayers] = defaults
    # attn_tp is dropped before attn_dp, expert_tp before ep, as people write them
    for name in reversed(_BY_NAME):
        if name == "attn_dp":
            continue
        fewer = {k: v for k, v in kept.items() if k != name}
        if resolve(fewer, layout.gpus, model) == layout:
            kept = fewer
    return ",".join(f"{k}={v}" for k, v in kept.items())


def _value(name: str, value: str) -> int | str | ShardedLayers:
    choices = _BY_NAME[name].choices
    if choices:
        if value not in choices:
            raise LayoutTextError(f"{name}={value}: choose one of {', '.join(choices)}")
        return value
    if name == "weight_shard_layers":
        if value == "none":
            return ShardedLayers()
        match = _RANGE.fullmatch(value)
        if not match or int(match[2]) < int(match[1]):
            raise LayoutTextError(f"{name}={value}: write none, FIRST-LAST or FIRST-LAST+draft, as in 1-92")
        return ShardedLayers(int(match[1]), int(match[2]), match[3] is not None)
    if not value.isdecimal() or not value.isascii() or not 1 <= int(value[:9]) <= _LARGEST or len(value) > 9:
        raise LayoutTextError(f"{name}={value}: write a whole number from 1 to {_LARGEST}")
    return int(value)
