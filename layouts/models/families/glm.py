"""GLM 5 with sparse attention: DeepSeek's layers, listed one by one; some share the index of an earlier one."""

from layouts.models.config import Config
from layouts.models.families import deepseek
from layouts.models.families.body import Body, depth
from layouts.models.layer import Layer

forms = deepseek.forms  # the same keys, with the same meaning


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    indexes = config.words("indexer_types", count, ("full", "shared"))
    if indexes[0] == "shared":
        raise config.error("indexer_types starts with 'shared'; the first layer must be 'full'")
    mlps = config.words("mlp_layer_types", count, ("dense", "sparse"))
    attention = {
        kind: deepseek.mla(config, deepseek.indexer(config, shared=kind == "shared")) for kind in ("full", "shared")
    }
    ffn = {"dense": deepseek.dense_mlp(config), "sparse": deepseek.moe(config)}
    layers = tuple(Layer(attention[index], ffn[mlp]) for index, mlp in zip(indexes, mlps, strict=True))
    return Body(layers, (Layer(attention["full"], ffn["sparse"]),) * deepseek.mtp_count(config))
