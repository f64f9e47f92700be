"""Weights of attention layers out of the tensors that Hugging Face checkpoints hold for them."""

from typing import Any

from layouts.checkpoint.names.claims import Claims
from layouts.checkpoint.views import Joined, Merged, Part, Repeated, Split, Stacked, Transposed, View
from layouts.dsa import Indexer
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.kda.reference import Weights as KDAWeights
from layouts.mla import MLA
from layouts.models.layer import Attention


def attention(claims: Claims, name: str, shape: Attention, attn_tp: int) -> object:
    """Weights of the layer's attention; `name` is that of its module, with a dot behind it."""
    match shape:
        case MLA():
            return _mla(claims, name, shape)
        case GQA():
            return _gqa(claims, name, shape, attn_tp)
        case KDA():
            return _kda(claims, name, shape)


def _mla(claims: Claims, name: str, mla: MLA) -> dict[str, View]:
    hidden, width, values = mla.hidden, mla.heads * (mla.nope + mla.rope), mla.heads * mla.v
    latent = claims.tensor(f"{name}kv_a_proj_with_mqa.weight", (mla.kv_values, hidden))
    kv_b = claims.tensor(f"{name}kv_b_proj.weight", (mla.heads * (mla.nope + mla.v), mla.kv_lora))
    by_head = Split(kv_b, 0, mla.heads)
    gate = {"gate_proj": claims.tensor(f"{name}g_proj.weight", (values, hidden))} if mla.output_gate else {}
    return {
        **_query(claims, name, mla, latent, width),
        "kv_a_norm": claims.tensor(f"{name}kv_a_layernorm.weight", (mla.kv_lora,)),
        "w_kc": Transposed(Part(by_head, 1, 0, mla.nope), (0, 2, 1)),
        "w_vc": Part(by_head, 1, mla.nope, mla.nope + mla.v),
        **gate,
        "o_proj": claims.tensor(f"{name}o_proj.weight", (hidden, values)),
        **(_indexer(claims, f"{name}indexer.", mla.indexer) if mla.indexer is not None else {}),
    }


def _query(claims: Claims, name: str, mla: MLA, latent: View, width: int) -> dict[str, View]:
    if not mla.q_lora:
        return {"q_proj": claims.tensor(f"{name}q_proj.weight", (width, mla.hidden)), "kv_a_proj": latent}
    low_rank = claims.tensor(f"{name}q_a_proj.weight", (mla.q_lora, mla.hidden))
    return {
        "fused_qkv_a_proj": Joined((low_rank, latent), 0),
        "q_a_norm": claims.tensor(f"{name}q_a_layernorm.weight", (mla.q_lora,)),
        "q_b_proj": claims.tensor(f"{name}q_b_proj.weight", (width, mla.q_lora)),
    }


def _indexer(claims: Claims, name: str, index: Indexer) -> dict[str, View]:
    if index.shared:
        return {}
    norm = (claims.tensor(f"{name}k_norm.{part}", (index.head_dim,)) for part in ("weight", "bias"))
    query = (index.heads * index.head_dim, index.q_lora or index.hidden)
    return {
        "index_q_b_proj": claims.tensor(f"{name}wq_b.weight", query),
        "index_k_proj": claims.tensor(f"{name}wk.weight", (index.head_dim, index.hidden)),
        "index_weights_proj": claims.tensor(f"{name}weights_proj.weight", (index.heads, index.hidden)),
        "index_k_norm": Joined(tuple(norm), 0),
    }


def _gqa(claims: Claims, name: str, gqa: GQA, attn_tp: int) -> dict[str, View]:
    hidden, dim, query, pair = gqa.hidden, gqa.head_dim, gqa.heads * gqa.head_dim, gqa.kv_heads * gqa.head_dim

    def key_and_value(of: str, *rest: int) -> View:
        parts = tuple(claims.tensor(f"{name}{which}_proj.{of}", (pair, *rest)) for which in ("k", "v"))
        by_head = Joined(tuple(Split(part, 0, gqa.kv_heads) for part in parts), 1)
        return Merged(Repeated(by_head, 0, max(1, attn_tp // gqa.kv_heads)), 0)

    made = {
        "q_proj": claims.tensor(f"{name}q_proj.weight", (query, hidden)),
        "kv_proj": key_and_value("weight", hidden),
        "o_proj": claims.tensor(f"{name}o_proj.weight", (hidden, query)),
    }
    if gqa.bias:
        made |= {"q_bias": claims.tensor(f"{name}q_proj.bias", (query,)), "kv_bias": key_and_value("bias")}
        made["o_bias"] = claims.tensor(f"{name}o_proj.bias", (hidden,))
    if gqa.qk_norm:
        made["qk_norm"] = Joined(tuple(claims.tensor(f"{name}{x}_norm.weight", (dim,)) for x in "qk"), 0)
    if gqa.sinks:
        made["sinks"] = claims.tensor(f"{name}sinks", (gqa.heads,))
    return made


def _kda(claims: Claims, name: str, kda: KDA) -> KDAWeights:
    hidden, heads, dim, width = kda.hidden, kda.heads, kda.head_dim, kda.width

    def by_head(projection: str, inp: int) -> View:
        return Split(claims.tensor(f"{name}{projection}.weight", (width, inp)), 0, heads)

    def convolution(of: str) -> View:
        return Split(Merged(claims.tensor(f"{name}{of}_conv1d.weight", (width, 1, kda.conv_kernel)), 0), 0, heads)

    def gate() -> dict[str, View]:
        if kda.full_rank_gate:
            return {"g_proj": by_head("g_proj", hidden)}
        low_rank = claims.tensor(f"{name}g_a_proj.weight", (dim, hidden))
        return {"g_a_proj": low_rank, "g_b_proj": by_head("g_b_proj", dim)}

    weights: Any = {
        "qkv_proj": Stacked(tuple(by_head(f"{x}_proj", hidden) for x in "qkv")),
        "conv1d": Stacked(tuple(convolution(x) for x in "qkv")),
        "f_a_proj": claims.tensor(f"{name}f_a_proj.weight", (dim, hidden)),
        "f_b_proj": by_head("f_b_proj", dim),
        "A_log": claims.vector(f"{name}A_log", heads),
        "dt_bias": Split(claims.vector(f"{name}dt_bias", width), 0, heads),
        "b_proj": claims.tensor(f"{name}b_proj.weight", (heads, hidden)),
        "o_norm": claims.tensor(f"{name}o_norm.weight", (dim,)),
        "o_proj": Split(claims.tensor(f"{name}o_proj.weight", (hidden, width)), 1, heads),
        **gate(),
    }
    return KDAWeights(**weights)
