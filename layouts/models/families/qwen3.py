"""Qwen3, dense or MoE: grouped-query attention with normed queries and keys."""

from dataclasses import replace

from layouts.models.config import LARGEST_CONTEXT, LARGEST_DEPTH, Config
from layouts.models.families import llama
from layouts.models.families.body import Body, depth
from layouts.models.families.deepseek import dense_mlp
from layouts.models.forms import Forms
from layouts.models.layer import Ffn, Layer
from layouts.moe import MoE
from layouts.moe.router import Router


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    window = config.size("sliding_window", most=LARGEST_CONTEXT) if config.flag("use_sliding_window") else 0
    first_windowed = config.size("max_window_layers", count, least=0, most=LARGEST_DEPTH) if window else count
    full, windowed = llama.gqa(config, qk_norm=True), llama.gqa(config, window, qk_norm=True)
    ffns = feed_forwards(config, count)
    return Body(tuple(Layer(windowed if i >= first_windowed else full, ffn) for i, ffn in enumerate(ffns)))


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError."""
    if _experts_key(config) is None:
        return llama.forms(config)
    router = Router(config.size("num_experts_per_tok"), "softmax", config.flag("norm_topk_prob"))
    return replace(llama.forms(config), router=router)


def feed_forwards(config: Config, count: int, shared: int = 0) -> tuple[Ffn, ...]:
    """What follows attention in each layer; `shared` is the width of the experts that every token passes."""
    sparse = _sparse_layers(config, count)
    moe = _moe(config, shared) if sparse else None
    dense = dense_mlp(config) if len(sparse) < count else None
    return tuple(ffn for i in range(count) if (ffn := moe if i in sparse else dense) is not None)


def _sparse_layers(config: Config, count: int) -> frozenset[int]:
    """Layers with experts: every decoder_sparse_step-th one that mlp_only_layers does not list."""
    if _experts_key(config) is None:
        return frozenset()
    step = config.size("decoder_sparse_step", 1)
    dense = config.sizes("mlp_only_layers", 0, count - 1) if config.has("mlp_only_layers") else ()
    return frozenset(i for i in range(count) if (i + 1) % step == 0 and i not in dense)


def _experts_key(config: Config) -> str | None:
    """Where the number of experts stands, if anywhere: newer configs have another name for it."""
    return next((key for key in ("num_experts", "num_local_experts") if config.has(key)), None)


def _moe(config: Config, shared: int) -> MoE:
    experts = _experts_key(config)
    assert experts is not None  # asked for by sparse layers only
    config.at_most("num_experts_per_tok", experts)
    return MoE(
        hidden=config.size("hidden_size"),
        experts=config.size(experts),
        topk=config.size("num_experts_per_tok"),
        intermediate=config.size("moe_intermediate_size"),
        latent=0,
        shared_intermediate=shared,
        bias=False,
    )
