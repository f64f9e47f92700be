"""GLM 5 with sparse attention: DeepSeek's layers, listed one by one; some share the index of an earlier one."""

from dataclasses import replace

from layouts.dsa.form import IndexForm
from layouts.models.config import Config
from layouts.models.families import deepseek
from layouts.models.families.body import Body, depth
from layouts.models.forms import Forms
from layouts.models.layer import Layer


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError. The index rotates interleaved pairs unless it says otherwise."""
    return replace(deepseek.forms(config), index=IndexForm(config.flag("indexer_rope_interleave", True)))


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
