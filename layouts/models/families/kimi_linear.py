"""Kimi Linear and Kimi K3: KDA with some MLA layers; one dense layer, then MoE, in K3 on a latent width."""

from collections.abc import Mapping
from typing import Final

from layouts.kda import KDA
from layouts.kda.reference import Form
from layouts.models.config import Config
from layouts.models.families import deepseek
from layouts.models.families.body import Body, depth
from layouts.models.forms import Forms, activation
from layouts.models.layer import Layer
from layouts.moe import MoE
from layouts.moe.router import Router
from layouts.residual.shape import AttentionResidual
from layouts.tensor import Component

# This family calls its experts block_sparse_moe.experts.N.w1/w2/w3 and its latent pair routed_expert_down/up_proj.
_MODULES: Final[Mapping[Component, str]] = {
    "attention": "self_attn.o_proj",
    "dense": "mlp.down_proj",
    "shared": "block_sparse_moe.shared_experts.down_proj",
    "experts": "block_sparse_moe.experts.0.w2",
    "latent": "block_sparse_moe.routed_expert_down_proj",
}


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    config, count = _published(config), depth(config)
    linear = config.section("linear_attn_config")
    full = _full_layers(linear, count)
    attentions = (_kda(config, linear), deepseek.mla(config, None))
    first, every = config.size("first_k_dense_replace", 0, least=0), config.size("moe_layer_freq", 1)
    ffns = (deepseek.dense_mlp(config), _moe(config))
    residual = _residual(config)
    layers = tuple(Layer(attentions[i in full], ffns[i >= first and i % every == 0], residual) for i in range(count))
    return Body(layers, (Layer(attentions[1], ffns[1]),) * deepseek.mtp_count(config), _MODULES)


def _published(config: Config) -> Config:
    """The keys that published configs have, made of those that transformers writes (5.24) where they are missing."""
    if config.has("linear_attn_config") or not config.has("layer_types"):
        return config
    count = depth(config)
    kinds = config.words("layer_types", count, ("linear_attention", "full_attention"))
    mlps = config.words("mlp_layer_types", count, ("dense", "sparse"))
    dense = mlps.index("sparse") if "sparse" in mlps else count
    if "dense" in mlps[dense:]:
        raise config.error("mlp_layer_types has a dense layer behind a sparse one; supported: dense layers first")
    linear = {
        "full_attn_layers": [i for i, kind in enumerate(kinds, 1) if kind == "full_attention"],
        "kda_layers": [i for i, kind in enumerate(kinds, 1) if kind == "linear_attention"],
        "head_dim": config.size("linear_head_dim"),
        "num_heads": config.size("linear_num_heads"),
        "short_conv_kernel_size": config.size("linear_conv_kernel_dim"),
    }
    return Config(config.source, {**config.values, "linear_attn_config": linear, "first_k_dense_replace": dense})


def _residual(config: Config) -> AttentionResidual | None:
    if not config.has("attn_res_block_size"):
        return None
    return AttentionResidual(config.size("hidden_size"), config.size("attn_res_block_size"))


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError."""
    linear, eps = _published(config).section("linear_attn_config"), config.number("rms_norm_eps")
    if not config.flag("mla_use_nope", True):
        raise config.error("mla_use_nope = false has no program; this family's attention does not rotate")
    return Forms(
        eps=eps,
        scale=deepseek.attention_scale(config),
        activation=activation(config),
        router=Router(
            topk=config.size("num_experts_per_token"),
            scoring="sigmoid",
            renormalize=config.flag("moe_renormalize", True),
            scaling=config.number("routed_scaling_factor", 1.0),
            groups=config.size("num_expert_group", 1),
            group_topk=config.size("topk_group", 1),
        ),
        kda=Form(eps, linear.number("gate_lower_bound") if linear.has("gate_lower_bound") else None),
    )


def _full_layers(linear: Config, count: int) -> frozenset[int]:
    """0-based layers with MLA; the config counts from 1 and must place every layer once."""
    full = linear.sizes("full_attn_layers", 1, count)
    kda = linear.sizes("kda_layers", 1, count)
    if sorted(full + kda) != list(range(1, count + 1)):
        raise linear.error(f"full_attn_layers and kda_layers must together name each of the {count} layers once")
    return frozenset(layer - 1 for layer in full)


def _kda(config: Config, linear: Config) -> KDA:
    return KDA(
        hidden=config.size("hidden_size"),
        heads=linear.size("num_heads"),
        head_dim=linear.size("head_dim"),
        conv_kernel=linear.size("short_conv_kernel_size"),
        full_rank_gate=linear.flag("use_full_rank_gate"),
    )


def _moe(config: Config) -> MoE:
    config.at_most("num_experts_per_token", "num_experts")
    width = config.size("moe_intermediate_size")
    return MoE(
        hidden=config.size("hidden_size"),
        experts=config.size("num_experts"),
        topk=config.size("num_experts_per_token"),
        intermediate=width,
        latent=config.size("routed_expert_hidden_size", 0, least=0),
        shared_intermediate=width * config.size("num_shared_experts", 0, least=0),
        bias=False,
        correction_bias=config.text("topk_method", "noaux_tc") == "noaux_tc",
    )
