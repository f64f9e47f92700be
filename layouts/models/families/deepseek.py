"""DeepSeek V3 and V3.2 and what is built like them (Kimi K2): MLA, optionally sparse; a few dense layers, then MoE."""

from layouts.dense import Dense
from layouts.dsa import Indexer
from layouts.mla import MLA
from layouts.models.config import LARGEST_DEPTH, Config
from layouts.models.families.body import Body, depth
from layouts.models.layer import Layer
from layouts.moe import MoE


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    attention = mla(config, indexer(config) if config.has("index_topk") else None)
    first, every = config.size("first_k_dense_replace", 0, least=0), config.size("moe_layer_freq", 1)
    dense, experts = Layer(attention, dense_mlp(config)), Layer(attention, moe(config))
    layers = tuple(experts if i >= first and i % every == 0 else dense for i in range(count))
    return Body(layers, (experts,) * mtp_count(config))


def mla(config: Config, index: Indexer | None) -> MLA:
    """The attention of every layer, with the index given."""
    return MLA(
        hidden=config.size("hidden_size"),
        heads=config.size("num_attention_heads"),
        q_lora=config.size("q_lora_rank", 0, least=0),
        kv_lora=config.size("kv_lora_rank"),
        nope=config.size("qk_nope_head_dim"),
        rope=config.size("qk_rope_head_dim", least=0),
        v=config.size("v_head_dim"),
        output_gate=config.flag("mla_use_output_gate"),
        indexer=index,
    )


def indexer(config: Config, shared: bool = False) -> Indexer:
    """The indexer of a sparse layer."""
    return Indexer(
        hidden=config.size("hidden_size"),
        q_lora=config.size("q_lora_rank", 0, least=0),
        heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        topk=config.size("index_topk"),
        shared=shared,
    )


def dense_mlp(config: Config) -> Dense:
    """The MLP of the dense layers."""
    return Dense(config.size("hidden_size"), config.size("intermediate_size"))


def moe(config: Config) -> MoE:
    """The experts of the MoE layers; the shared ones are held as one MLP."""
    config.at_most("num_experts_per_tok", "n_routed_experts")
    width = config.size("moe_intermediate_size")
    return MoE(
        hidden=config.size("hidden_size"),
        experts=config.size("n_routed_experts"),
        topk=config.size("num_experts_per_tok"),
        intermediate=width,
        latent=0,
        shared_intermediate=width * config.size("n_shared_experts", 0, least=0),
        bias=False,
        correction_bias=config.text("topk_method", "") == "noaux_tc",
    )


def mtp_count(config: Config) -> int:
    """Multi-token-prediction layers of the checkpoint."""
    return config.size("num_nextn_predict_layers", 0, least=0, most=LARGEST_DEPTH)
