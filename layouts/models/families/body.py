"""What a family reader makes of a config, and the module names by which quantisation configs know its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from layouts.kda import KDA
from layouts.models.config import LARGEST_DEPTH, Config
from layouts.models.layer import Layer
from layouts.precision import Module
from layouts.tensor import Component

# Component -> the module, below `model.layers.N.`, whose treatment by a quantisation config decides for it.
USUAL_MODULES: Final[Mapping[Component, str]] = MappingProxyType(
    {
        "attention": "self_attn.o_proj",
        "dense": "mlp.down_proj",
        "shared": "mlp.shared_experts.down_proj",
        "experts": "mlp.experts.0.down_proj",
    }
)


@dataclass(frozen=True)
class Body:
    """Layers of a model and the multi-token-prediction layers stored behind them. `formats`: of components for which
    the config has keys of its own, beside its quantisation config; `table_bytes` as in `Model`."""

    layers: tuple[Layer, ...]
    mtp: tuple[Layer, ...] = ()
    module_names: Mapping[Component, str] = field(default_factory=lambda: USUAL_MODULES)
    notes: tuple[str, ...] = ()
    formats: Mapping[Component, str] = field(default_factory=lambda: MappingProxyType({}))
    table_bytes: int = 0
    recurrent_module: str | None = None  # stands for the attention of layers with a state where it is named otherwise

    def modules(self) -> Iterator[Module]:
        """Every module of the layers that a quantisation config may name, with its parameters."""
        for index, layer in enumerate(self.layers):
            yield from self.layer_modules(index, layer)

    def layer_modules(self, index: int, layer: Layer) -> Iterator[Module]:
        """The modules of one layer, one for each component whose format can vary."""
        sizes: dict[Component, int] = {}
        values = {"experts_rank": layer.experts}
        for tensor in layer.tensors():
            if tensor.fixed is None:
                size = int(tensor.parameters * tensor.copies.evaluate(values))
                sizes[tensor.component] = sizes.get(tensor.component, 0) + size
        names = dict(self.module_names)
        if self.recurrent_module is not None and isinstance(layer.attention, KDA):
            names["attention"] = self.recurrent_module
        for component, size in sizes.items():
            yield Module(component, f"model.layers.{index}.{names[component]}", size)


def depth(config: Config) -> int:
    """Number of layers of the model itself."""
    return config.size("num_hidden_layers", most=LARGEST_DEPTH)
