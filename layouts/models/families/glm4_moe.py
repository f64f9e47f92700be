"""GLM 4.5 to 4.7 with experts: grouped-query attention; a few dense layers, then DeepSeek's MoE."""

from layouts.models.config import Config
from layouts.models.families import deepseek, llama
from layouts.models.families.body import Body, depth
from layouts.models.forms import unavailable
from layouts.models.layer import Layer

forms = unavailable


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    attention = llama.gqa(config, qk_norm=config.flag("use_qk_norm"))
    first = config.size("first_k_dense_replace", 0, least=0)
    dense, experts = Layer(attention, deepseek.dense_mlp(config)), Layer(attention, deepseek.moe(config))
    layers = tuple(dense if i < first else experts for i in range(depth(config)))
    return Body(layers, (experts,) * deepseek.mtp_count(config))
