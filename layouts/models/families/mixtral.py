"""Mixtral and MiniMax M2: grouped-query attention, and in every layer experts of the width that the MLP had."""

from typing import Final

from layouts.models.config import Config
from layouts.models.families import llama
from layouts.models.families.body import USUAL_MODULES, Body, depth
from layouts.models.forms import unavailable
from layouts.models.layer import Layer
from layouts.moe import MoE
from layouts.tensor import Component

_MODULES: Final[dict[Component, str]] = {**USUAL_MODULES, "experts": "block_sparse_moe.experts.0.w2"}
forms = unavailable


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    config.at_most("num_experts_per_tok", "num_local_experts")
    moe = MoE(
        hidden=config.size("hidden_size"),
        experts=config.size("num_local_experts"),
        topk=config.size("num_experts_per_tok"),
        intermediate=config.size("intermediate_size"),
        latent=0,
        shared_intermediate=config.size("shared_intermediate_size", 0, least=0),
        bias=False,
        correction_bias=config.flag("use_routing_bias"),
    )
    if config.has("sliding_window"):
        raise config.error("sliding_window is not supported for this architecture; set it to null")
    layer = Layer(llama.gqa(config, qk_norm=config.flag("use_qk_norm")), moe)
    return Body((layer,) * depth(config), module_names=_MODULES)
