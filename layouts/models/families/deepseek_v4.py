"""DeepSeek V4: a window and compressed rows in every layer, streams that are mixed, DeepSeek's experts.

Not counted: the token tables by which the first layers route (`num_hash_layers`; vocabulary x top-k integers each) and
the read of the streams before the head, together below 0.1 % of the weights; the draft's pair of input projections is
taken as one in bf16.
"""

from collections.abc import Mapping
from typing import Final

from layouts.csa import CSA
from layouts.models.config import LARGEST_CONTEXT, Config
from layouts.models.families import deepseek
from layouts.models.families.body import Body, depth
from layouts.models.forms import unavailable
from layouts.models.layer import Layer
from layouts.tensor import Component

_INDEXED, _RATIOS = 4, (0, 4, 128)
_EXPERTS: Final[Mapping[str, str | None]] = {"fp4": "mxfp4", "fp8": None}
_COMPLEX64 = 8
forms = unavailable


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    ratios = config.sizes("compress_ratios", 0, max(_RATIOS))
    if len(ratios) < count:
        raise config.error(f"compress_ratios has {len(ratios)} entries; one is needed for each of {count} layers")
    for ratio in ratios:
        if ratio not in _RATIOS:
            raise config.error(f"compress_ratios holds {ratio}; supported: {', '.join(map(str, _RATIOS))}")
    if config.size("num_key_value_heads", 1) != 1:
        raise config.error("num_key_value_heads must be 1: the window and the compressed rows have one head")
    experts = deepseek.moe(config)
    layers = tuple(Layer(_attention(config, ratio), experts) for ratio in ratios[:count])
    return Body(
        layers,
        (Layer(_attention(config, 0), experts),) * deepseek.mtp_count(config),
        formats=_formats(config),
        table_bytes=_tables(config, ratios[:count]),
        notes=(
            "page padding of KV rows, and the wider compressor states beside a draft, are counted at a start only",
            "fp8 KV rows are those of 584 bytes; on SM100 SGLang 0.5.23 packs them into 528",
        ),
    )


def _attention(config: Config, ratio: int) -> CSA:
    config.multiple("num_attention_heads", "o_groups")
    indexed = ratio == _INDEXED
    return CSA(
        hidden=config.size("hidden_size"),
        heads=config.size("num_attention_heads"),
        head_dim=config.size("head_dim"),
        rope=config.size("qk_rope_head_dim"),
        q_lora=config.size("q_lora_rank"),
        groups=config.size("o_groups"),
        o_lora=config.size("o_lora_rank"),
        window=config.size("sliding_window", most=LARGEST_CONTEXT),
        streams=config.size("hc_mult", most=64),
        ratio=ratio,
        index_heads=config.size("index_n_heads") if indexed else 0,
        index_dim=config.size("index_head_dim") if indexed else 0,
        topk=config.size("index_topk") if indexed else 0,
    )


def _formats(config: Config) -> Mapping[Component, str]:
    """Rows are kept in fp8 unless a flag says otherwise (SGLang 0.5.23 `_deepseek_v4_kv_cache_dtype`); routed experts
    have a format of their own where `expert_dtype` names it, or a `moe_quant_algo` beside it."""
    formats: dict[Component, str] = {"kv": "fp8"}
    name = config.text("expert_dtype", "fp8")
    if name not in _EXPERTS:
        raise config.error(f"expert_dtype = {name!r} is not supported; supported: {', '.join(_EXPERTS)}")
    quantised = config.section("quantization_config") if config.has("quantization_config") else None
    algorithm = "" if quantised is None else quantised.text("moe_quant_algo", "")
    if algorithm not in ("", "NVFP4"):
        raise config.error(f"quantization_config.moe_quant_algo = {algorithm!r} is not supported; supported: NVFP4")
    chosen = "nvfp4" if algorithm else _EXPERTS[name]
    return {**formats, "experts": chosen} if chosen else formats


def _tables(config: Config, ratios: tuple[int, ...]) -> int:
    """Rotary tables as long as the whole context, one for each base in use: a complex table that the layers share, and
    the cosines and sines of the rotary module (SGLang 0.5.23 `precompute_freqs_cis`, `get_rope_wrapper`)."""
    bases = len({bool(ratio) for ratio in ratios})
    row = config.size("qk_rope_head_dim") // 2 * _COMPLEX64
    return 2 * bases * row * config.size("max_position_embeddings", most=LARGEST_CONTEXT)
