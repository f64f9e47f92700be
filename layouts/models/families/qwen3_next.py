"""Qwen3-Next, Qwen3.5 and their successors: Gated DeltaNet with some gated GQA layers; a dense MLP, or MoE with a
shared expert (its gate of one value a row is not counted)."""

from typing import Final

from layouts.kda import KDA
from layouts.models.config import LARGEST_DEPTH, Config
from layouts.models.families import llama, qwen3
from layouts.models.families.body import USUAL_MODULES, Body, depth
from layouts.models.forms import Forms
from layouts.models.layer import Attention, Layer
from layouts.tensor import Component

_KINDS: Final = ("linear_attention", "full_attention")
_INTERVAL: Final = 4  # every fourth layer attends to all tokens where neither key says otherwise (transformers 5.24)


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    full = llama.gqa(config, qk_norm=True, output_gate=config.flag("attn_output_gate", True))
    attention: dict[str, Attention] = dict(zip(_KINDS, (_linear(config), full), strict=True))
    ffns = qwen3.feed_forwards(config, count, config.size("shared_expert_intermediate_size", 0, least=0))
    layers = tuple(Layer(attention[kind], ffn) for kind, ffn in zip(_kinds(config, count), ffns, strict=True))
    drafted = config.size("mtp_num_hidden_layers", 0, least=0, most=LARGEST_DEPTH)
    names: dict[Component, str] = {**USUAL_MODULES, "shared": "mlp.shared_expert.down_proj"}
    return Body(layers, (Layer(full, ffns[-1]),) * drafted, names, recurrent_module="linear_attn.out_proj")


def forms(config: Config) -> Forms:
    """None: raises ModelError."""
    raise config.error("linear attention with one decay a head (Gated DeltaNet) has no program; it can be priced")


def _kinds(config: Config, count: int) -> tuple[str, ...]:
    if config.has("layer_types"):
        return config.words("layer_types", count, _KINDS)
    every = config.size("full_attention_interval", _INTERVAL)
    return tuple(_KINDS[(i + 1) % every == 0] for i in range(count))


def _linear(config: Config) -> KDA:
    config.multiple("linear_num_value_heads", "linear_num_key_heads")
    return KDA(
        hidden=config.size("hidden_size"),
        heads=config.size("linear_num_value_heads"),
        head_dim=config.size("linear_key_head_dim"),
        conv_kernel=config.size("linear_conv_kernel_dim"),
        full_rank_gate=True,
        head_gate=True,
        key_heads=config.size("linear_num_key_heads"),
        value_dim=config.size("linear_value_head_dim"),
    )
