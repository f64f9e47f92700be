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
    shares = config.has("indexer_types") or config.has("index_topk_freq")  # GLM-5.0 and 5.1 do not
    indexes = config.words("indexer_types", count, ("full", "shared")) if shares else ("full",) * count
    if indexes[0] == "shared":
        raise config.error("indexer_types starts with 'shared'; the first layer must be 'full'")
    mlps = _feed_forwards(config, count)
    attention = {
        kind: deepseek.mla(config, deepseek.indexer(config, shared=kind == "shared")) for kind in ("full", "shared")
    }
    ffn = {"dense": deepseek.dense_mlp(config), "sparse": deepseek.moe(config)}
    layers = tuple(Layer(attention[index], ffn[mlp]) for index, mlp in zip(indexes, mlps, strict=True))
    return Body(layers, (Layer(attention["full"], ffn["sparse"]),) * deepseek.mtp_count(config))


def _feed_forwards(config: Config, count: int) -> tuple[str, ...]:
    if config.has("mlp_layer_types") or not config.has("first_k_dense_replace"):
        return config.words("mlp_layer_types", count, ("dense", "sparse"))
    dense = config.size("first_k_dense_replace", least=0)
    return tuple("dense" if i < dense else "sparse" for i in range(count))
