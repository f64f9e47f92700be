"""DeepSeek V3 and V3.2 and what is built like them (Kimi K2): MLA, optionally sparse; a few dense layers, then MoE."""

from layouts.dense import Dense
from layouts.dsa import Indexer
from layouts.dsa.form import IndexForm
from layouts.mla import MLA
from layouts.models.config import LARGEST_DEPTH, Config
from layouts.models.families.body import Body, depth
from layouts.models.forms import Forms, activation
from layouts.models.layer import Layer
from layouts.models.rotary import kind_of, mscale, read_rotary, scaling_of
from layouts.moe import MoE
from layouts.moe.router import Router


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    count = depth(config)
    attention = mla(config, indexer(config) if config.has("index_topk") else None)
    first, every = config.size("first_k_dense_replace", 0, least=0), config.size("moe_layer_freq", 1)
    dense, experts = Layer(attention, dense_mlp(config)), Layer(attention, moe(config))
    layers = tuple(experts if i >= first and i % every == 0 else dense for i in range(count))
    return Body(layers, (experts,) * mtp_count(config))


def forms(config: Config) -> Forms:
    """Arithmetic of the config; raises ModelError."""
    return Forms(
        eps=config.number("rms_norm_eps"),
        scale=attention_scale(config),
        activation=activation(config),
        rotary=read_rotary(config, config.size("qk_rope_head_dim"), config.flag("rope_interleave", True)),
        router=router(config),
        index=IndexForm(config.flag("indexer_rope_interleave")) if config.has("index_topk") else None,
    )


def attention_scale(config: Config) -> float:
    """1 / sqrt(query width), times the square of YaRN's growth where the context was stretched."""
    scaling = scaling_of(config)
    plain = (config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim", least=0)) ** -0.5
    if kind_of(scaling) == "default" or not scaling.number("mscale_all_dim", 0.0):
        return plain
    return plain * mscale(scaling.number("factor"), scaling.number("mscale_all_dim")) ** 2


def router(config: Config) -> Router:
    """Sigmoid scores, the best groups first."""
    return Router(
        topk=config.size("num_experts_per_tok"),
        scoring="sigmoid",
        renormalize=config.flag("norm_topk_prob", True),
        scaling=config.number("routed_scaling_factor", 1.0),
        groups=config.size("n_group", 1),
        group_topk=config.size("topk_group", 1),
    )


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
        correction_bias=config.text("topk_method", "noaux_tc") == "noaux_tc",
    )


def mtp_count(config: Config) -> int:
    """Multi-token-prediction layers of the checkpoint."""
    return config.size("num_nextn_predict_layers", 0, least=0, most=LARGEST_DEPTH)
