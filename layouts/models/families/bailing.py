"""Ling: V2 with grouped-query attention, V3 with Kimi Delta Attention and some MLA layers; DeepSeek's MoE.

An output gate of MLA with one value a head is not counted.
"""

from layouts.kda import KDA
from layouts.models.config import Config
from layouts.models.families import deepseek, llama
from layouts.models.families.body import USUAL_MODULES, Body, depth
from layouts.models.forms import unavailable
from layouts.models.layer import Attention, Layer
from layouts.moe import MoE
from layouts.tensor import Component

forms = unavailable


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count, first = depth(config), config.size("first_k_dense_replace", 0, least=0)
    attention = _attentions(config, count)
    dense, moe = deepseek.dense_mlp(config), _moe(config)
    layers = tuple(Layer(a, dense if i < first else moe) for i, a in enumerate(attention))
    names: dict[Component, str] = {**USUAL_MODULES, "attention": "attention.dense"}
    return Body(layers, (Layer(attention[-1], moe),) * deepseek.mtp_count(config), names)


def _attentions(config: Config, count: int) -> tuple[Attention, ...]:
    """Every `layer_group_size`-th layer attends to all tokens, the others keep a state (SGLang 0.5.23)."""
    if not config.has("short_conv_kernel_size"):
        if config.size("layer_group_size", 1) > 1:
            raise config.error("lightning attention (layer_group_size without short_conv_kernel_size) is not supported")
        return (llama.gqa(config, qk_norm=config.flag("use_qk_norm")),) * count
    if config.flag("use_mla_nope"):
        raise config.error("use_mla_nope = true is not supported; its cache was not compared with anything")
    every, full, linear = config.size("layer_group_size"), deepseek.mla(config, None), _kda(config)
    return tuple(full if (i + 1) % every == 0 else linear for i in range(count))


def _kda(config: Config) -> KDA:
    return KDA(
        hidden=config.size("hidden_size"),
        heads=config.size("num_attention_heads"),
        head_dim=config.size("head_dim"),
        conv_kernel=config.size("short_conv_kernel_size"),
        full_rank_gate=config.flag("no_kda_lora"),
        full_rank_decay=config.flag("no_kda_lora"),
    )


def _moe(config: Config) -> MoE:
    config.at_most("num_experts_per_tok", "num_experts")
    width = config.size("moe_intermediate_size")
    shared = config.size("moe_shared_expert_intermediate_size", width)
    return MoE(
        hidden=config.size("hidden_size"),
        experts=config.size("num_experts"),
        topk=config.size("num_experts_per_tok"),
        intermediate=width,
        latent=0,
        shared_intermediate=shared * config.size("num_shared_experts", 0, least=0),
        bias=False,
        correction_bias=config.flag("moe_router_enable_expert_bias"),
    )
