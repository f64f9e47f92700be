"""Which format each component of a model is stored in: read from a quantisation config, or asked for by the user."""

import difflib
import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hw.errors import MeshwrightError
from layouts.shapes import KV_FORMATS
from layouts.tensor import COMPONENTS, FORMATS, Component, Format, Precision

_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {"kv": KV_FORMATS, "state": ("fp32", "bf16")}
_WEIGHTS: Final = tuple(name for name in FORMATS if name != "fp8_raw")
_METHODS: Final = ("fp8", "mxfp4", "compressed-tensors", "modelopt")


class PrecisionError(MeshwrightError):
    """A quantisation that is not understood, or a component or format that does not exist."""


@dataclass(frozen=True)
class Module:
    """A named module of the checkpoint that stands for the weights of one component in one layer."""

    component: Component
    name: str
    parameters: int


class Quantization:
    """A Hugging Face `quantization_config`: the format of any module by name. `None` leaves everything in bf16."""

    def __init__(self, config: object, source: str):
        if config is not None and not isinstance(config, Mapping):
            raise PrecisionError(f"{source}: quantization_config must be an object, not {type(config).__name__}")
        self._config: Mapping[str, object] = config or {}
        self._source = source
        self._method = self._config.get("quant_method")
        if config is not None and self._method not in _METHODS:
            raise self._unsupported("quant_method", self._method, _METHODS)
        self._ignored = self._patterns("ignore") + self._patterns("modules_to_not_convert")
        self._groups = self._read_groups()

    @property
    def kv(self) -> Format:
        """Format of the KV cache: fp8 where a `kv_cache_scheme` of 8 bits says so, else bf16."""
        scheme = self._config.get("kv_cache_scheme")
        return FORMATS["fp8" if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 else "bf16"]

    def format_of(self, module: str) -> Format:
        """Format of the weight of one module, by its name in the text model (`model.layers.3.self_attn.o_proj`)."""
        # multimodal wrappers prefix the text model, or stand between it and its layers
        names = (module, f"language_model.{module}", module.replace("model.", "model.language_model.", 1))
        if any(self._matches(pattern, name) for pattern in self._ignored for name in names):
            return FORMATS["bf16"]
        for targets, chosen in self._groups:
            if "Linear" in targets or any(self._matches(target, name) for target in targets for name in names):
                return chosen
        return FORMATS["bf16"]

    def _matches(self, pattern: str, name: str) -> bool:
        """`re:` patterns as compressed-tensors reads them; else shell wildcards, for the module or one above it."""
        if pattern.startswith("re:"):
            try:
                return re.match(pattern[3:], name) is not None
            except re.error as error:
                raise PrecisionError(
                    f"{self._source}: quantization_config: {pattern!r} is no regular expression ({error})"
                ) from None
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")

    def _patterns(self, key: str) -> tuple[str, ...]:
        entries = self._config.get(key)
        if entries is None:
            return ()
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise PrecisionError(f"{self._source}: quantization_config.{key} must be a list of module names")
        return tuple(entries)

    def _read_groups(self) -> tuple[tuple[tuple[str, ...], Format], ...]:
        """(targets, format) in order; the methods without groups quantise every Linear."""
        if self._method is None:
            return ()
        if self._method in ("fp8", "mxfp4"):
            return ((("Linear",), FORMATS[str(self._method)]),)
        groups = self._config.get("config_groups")
        if not isinstance(groups, Mapping):
            raise PrecisionError(f"{self._source}: quantization_config.config_groups is missing or no object")
        return tuple(self._read_group(name, group) for name, group in groups.items())

    def _read_group(self, name: str, group: object) -> tuple[tuple[str, ...], Format]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
            raise PrecisionError(f"{self._source}: quantization_config.config_groups.{name}.weights is missing")
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list):
            raise PrecisionError(f"{self._source}: quantization_config.config_groups.{name}.targets must be a list")
        return tuple(map(str, targets)), self._weight_format(weights)

    def _weight_format(self, weights: Mapping[str, object]) -> Format:
        kind, bits, group = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
        if (kind, bits) == ("float", 8):
            return FORMATS["fp8"]
        if (kind, bits) == ("float", 4) and group in (16, 32):
            return FORMATS["nvfp4" if group == 16 else "mxfp4"]
        if (kind, bits) == ("int", 4) and isinstance(group, int) and group > 0:
            return replace(FORMATS["int4"], scale=Fraction(2, group))  # one bf16 scale a group
        supported = ("float 8", "float 4 by 16 or 32", "int 4 by group")
        raise self._unsupported("weights", f"{kind} {bits} by {group}", supported)

    def _unsupported(self, key: str, value: object, supported: Iterable[str]) -> PrecisionError:
        return PrecisionError(
            f"{self._source}: quantization_config.{key} = {value!r} is not supported; supported: {', '.join(supported)}"
        )


def read_precision(quantization: Quantization, modules: Iterable[Module]) -> tuple[Precision, tuple[str, ...]]:
    """Precision by component, and a note for each component whose layers disagree (the larger part decides).

    Components without modules, head (no engine quantises it with the linear layers), draft and state keep bf16, the
    recurrent state fp32.
    """
    held: dict[Component, dict[Format, int]] = defaultdict(lambda: defaultdict(int))
    for module in modules:
        held[module.component][quantization.format_of(module.name)] += module.parameters
    formats: dict[str, Format] = {component: FORMATS["bf16"] for component in COMPONENTS}
    formats |= {"state": FORMATS["fp32"], "kv": quantization.kv}
    notes = []
    for component, parts in held.items():
        formats[component] = max(parts, key=parts.__getitem__)
        if len(parts) > 1:
            whole = sum(parts.values())
            shares = ", ".join(f"{100 * size / whole:.1f} % {chosen.name}" for chosen, size in parts.items())
            notes.append(f"{component}: {shares} of its parameters; taken as {formats[component].name}")
    return Precision(formats), tuple(notes)


def parse_precision(text: str) -> dict[str, Format]:
    """Changes to a Precision from `attention=fp8,kv=fp8`; raises PrecisionError."""
    changes: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        component, equals, name = (field.strip() for field in part.partition("="))
        if not equals:
            raise PrecisionError(f"precision {part!r} has no '='; write component=format, for example kv=fp8")
        if component in changes:
            raise PrecisionError(f"precision names {component!r} twice; keep one of the two")
        changes[component] = name
    return checked_formats(changes, "precision")


def checked_formats(names: Mapping[str, object], source: str) -> dict[str, Format]:
    """Formats by component from their names; raises PrecisionError that lists what exists."""
    return {component: _checked_format(component, name, source) for component, name in names.items()}


def _checked_format(component: str, name: object, source: str) -> Format:
    if component not in COMPONENTS:
        near = difflib.get_close_matches(component, COMPONENTS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PrecisionError(f"{source}: no component {component!r}{hint} Components: {', '.join(COMPONENTS)}")
    allowed = _ALLOWED.get(component, _WEIGHTS)
    if not isinstance(name, str) or name not in allowed:
        raise PrecisionError(f"{source}: {component} cannot be {name!r}; formats for it: {', '.join(allowed)}")
    return FORMATS[name]
