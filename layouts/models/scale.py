"""Configs cut down to what can run: fewer layers and experts at full width, or everything tiny. The structure stays.

A scaled model is a config.json like any other, so that every question can be asked of it.
"""

import functools
import json
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from layouts.models import presets
from layouts.models.config import Config, read_json
from layouts.models.errors import ModelError
from layouts.models.load import load_model, text_config

_EXPERTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")
_GROUPS: Final = ("n_group", "num_expert_group")  # of experts, of which a router first chooses the best
_BY_LAYER: Final = ("layer_types", "mlp_layer_types", "indexer_types")  # lists with an entry a layer


@dataclass(frozen=True)
class Scale:
    """`size`: full or tiny. `layers`, `experts`: how many to keep (None: all; for tiny, enough for every kind)."""

    size: str = "full"
    layers: int | None = None
    experts: int | None = None

    def __post_init__(self) -> None:
        if self.size not in ("full", *sizes()):
            raise ModelError(f"scale {self.size!r} is unknown: choose one of full, {', '.join(sizes())}")
        for name in ("layers", "experts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ModelError(f"{name} = {value} must be at least 1; leave it out to keep them all")

    @property
    def whole(self) -> bool:
        """Whether nothing is cut down."""
        return self.size == "full" and self.layers is None and self.experts is None


@functools.cache
def sizes() -> Mapping[str, Mapping[str, Any]]:
    """The sizes that a model can be shrunk to, and the most that each key of its config may then say."""
    return tomllib.loads(pathlib.Path(__file__).with_name("scales.toml").read_text(encoding="utf-8"))


def scaled_config(name: str, scale: Scale, folder: pathlib.Path) -> pathlib.Path:
    """Write the config.json of a scaled model into a folder; its path. Weights are then plain: no quantisation.

    ModelError where the model cannot be cut so."""
    text = text_config(read_json(presets.find_config(presets.base_of(name))))
    values: dict[str, Any] = dict(text.values)
    values.pop("quantization_config", None)
    if scale.size != "full":
        values = _capped(values, sizes()[scale.size])
    if scale.experts is not None:
        values = _fewer_experts(Config(text.source, values), scale.experts)
    written = _written(values, folder)
    layers = text.size("num_hidden_layers") if scale.size == "full" else _every_kind(written)
    return _written(_cut_layers(values, min(scale.layers or layers, text.size("num_hidden_layers"))), folder)


def _fewer_experts(text: Config, experts: int) -> dict[str, Any]:
    """The same config with at most so many experts a layer; a token chooses as many as before, or all that it may."""
    named = [key for key in _EXPERTS if text.has(key)]
    if not named:
        raise text.error(f"experts = {experts}: the model has none; leave it out")
    kept = min(experts, *(text.size(key) for key in named))
    groups = next((text.size(key) for key in _GROUPS if text.has(key)), 1)
    if kept % groups:
        raise text.error(f"experts = {experts} cannot be cut into {groups} groups: give a multiple of {groups}")
    most = kept // groups * min(text.size("topk_group", 1), groups)
    chosen = [key for key in text.values if key.startswith("num_experts_per")]
    return {
        **text.values,
        **dict.fromkeys(named, kept),
        **{key: min(text.size(key), most) for key in chosen if text.has(key)},
    }


def _written(values: Mapping[str, Any], folder: pathlib.Path) -> pathlib.Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    return path


def _every_kind(path: pathlib.Path) -> int:
    """Layers from the first on until every kind has appeared."""
    kinds = load_model(str(path)).kind_of_layer
    return max(max(kinds.index(kind) for kind in set(kinds)) + 1, 2)


def _cut_layers(values: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same config with its first layers only."""
    values = {**values, "num_hidden_layers": layers}
    for key in _BY_LAYER:
        if isinstance(values.get(key), list):
            values[key] = values[key][:layers]
    if isinstance(values.get("mlp_only_layers"), list):
        values["mlp_only_layers"] = [layer for layer in values["mlp_only_layers"] if layer < layers]
    if isinstance(values.get("linear_attn_config"), Mapping):
        section = dict(values["linear_attn_config"])
        for key in ("full_attn_layers", "kda_layers"):  # counted from 1
            section[key] = [layer for layer in section[key] if layer <= layers]
        values["linear_attn_config"] = section
    return values


def _capped(values: Mapping[str, Any], most: Mapping[str, Any]) -> dict[str, Any]:
    """Every number that has a cap, at most that; sections likewise. KV heads keep their share of the heads."""
    capped = dict(values)
    for key, cap in most.items():
        held = values.get(key)
        if isinstance(cap, Mapping):
            if isinstance(held, Mapping):
                capped[key] = _capped(held, cap)
        elif isinstance(held, int) and not isinstance(held, bool):
            capped[key] = min(held, cap)
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int):
        capped["num_key_value_heads"] = max(kv_heads * capped["num_attention_heads"] // heads, 1)
    return capped
