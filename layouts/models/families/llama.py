"""Llama: grouped-query attention and a dense MLP in every layer."""

from layouts.dense import Dense
from layouts.gqa import GQA
from layouts.models.config import Config
from layouts.models.families.body import Body, depth
from layouts.models.forms import Forms, activation
from layouts.models.layer import Layer
from layouts.models.rotary import read_rotary


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    layer = Layer(gqa(config), Dense(config.size("hidden_size"), config.size("intermediate_size")))
    return Body((layer,) * depth(config))


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError."""
    dim = gqa(config).head_dim
    return Forms(config.number("rms_norm_eps"), dim**-0.5, activation(config), read_rotary(config, dim))


def gqa(config: Config, window: int = 0, qk_norm: bool = False, sinks: bool = False, output_gate: bool = False) -> GQA:
    """The attention that GQA families share; head_dim is hidden / heads where it is not given."""
    config.multiple("num_attention_heads", "num_key_value_heads")
    if not config.has("head_dim"):
        config.multiple("hidden_size", "num_attention_heads")
    heads = config.size("num_attention_heads")
    return GQA(
        hidden=config.size("hidden_size"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads"),
        head_dim=config.size("head_dim", config.size("hidden_size") // heads or None),
        window=window,
        bias=config.flag("attention_bias"),
        qk_norm=qk_norm,
        sinks=sinks,
        output_gate=output_gate,
    )
