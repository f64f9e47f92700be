"""gpt-oss: grouped-query attention with biases and sinks, every other layer in a sliding window; MoE with biases."""

from dataclasses import replace

from layouts.dense.activation import ClampedSwiGLU
from layouts.models.config import LARGEST_CONTEXT, Config
from layouts.models.families import llama
from layouts.models.families.body import USUAL_MODULES, Body, depth
from layouts.models.forms import Forms
from layouts.models.layer import Layer
from layouts.moe import MoE
from layouts.moe.router import Router


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    kinds = config.words("layer_types", depth(config), ("full_attention", "sliding_attention"))
    window = config.size("sliding_window", most=LARGEST_CONTEXT)
    ffn = _moe(config)
    by_kind = {
        "full_attention": Layer(llama.gqa(config, sinks=True), ffn),
        "sliding_attention": Layer(llama.gqa(config, window, sinks=True), ffn),
    }
    return Body(tuple(by_kind[kind] for kind in kinds), module_names={**USUAL_MODULES, "experts": "mlp.experts"})


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError."""
    return replace(
        llama.forms(config),
        activation=ClampedSwiGLU(config.number("swiglu_limit")),
        router=Router(config.size("num_experts_per_tok"), "softmax_of_chosen"),
    )


def _moe(config: Config) -> MoE:
    config.at_most("num_experts_per_tok", "num_local_experts")
    return MoE(
        hidden=config.size("hidden_size"),
        experts=config.size("num_local_experts"),
        topk=config.size("num_experts_per_tok"),
        intermediate=config.size("intermediate_size"),
        latent=0,
        shared_intermediate=0,
        bias=True,
    )
