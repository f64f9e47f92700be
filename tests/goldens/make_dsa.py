"""Make dsa.npz: what transformers' sparse attention layers compute on small random weights, in float32.

`full`, `shared`: the attention layer of GlmMoeDsa with an indexer of its own, and with the choice of that layer; whole
prompts, longer than the index's top k. `half_split/chosen`: the choice of DeepseekV32's indexer on the same weights
and inputs, whose rotary pairs lie half a part apart. Choices are sorted by position, for rows that see more tokens than
they choose, none of which rounding decides.

Run aside, in an environment of its own (the suite needs no torch):
    pip install torch==2.13.0 transformers==5.24.0 numpy
    python tests/goldens/make_dsa.py
"""

# torch and transformers live in another environment
# pyright: reportMissingImports=false

import pathlib
from typing import Any

import numpy as np
import torch
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
from transformers.models.glm_moe_dsa.configuration_glm_moe_dsa import GlmMoeDsaConfig
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaAttention, GlmMoeDsaRotaryEmbedding

REQUESTS, TOKENS, TOPK = 2, 24, 6


def config() -> Any:
    return GlmMoeDsaConfig(
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=2,
        q_lora_rank=12,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        index_n_heads=8,
        index_head_dim=8,
        index_topk=TOPK,
        indexer_types=["full", "shared"],
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        attn_implementation="eager",
    )


def layer(index: int) -> Any:
    made = GlmMoeDsaAttention(config(), index).float().eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5) if name.endswith("weight") else weight.normal_(0.0, 0.5)
            else:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return made


def clear(indexer: Any, hidden: torch.Tensor, low: torch.Tensor, *others: Any) -> torch.Tensor:
    """The choice of rows that see more than they choose; an error where a thousand times float32's error changes it."""

    def choice(noise: float) -> torch.Tensor:
        noisy = (x + noise * torch.randn_like(x) for x in (hidden, low))
        return indexer(*noisy, *others)[:, TOPK:].sort(dim=-1).values

    chosen = choice(0.0)
    assert all(torch.equal(choice(1e-4), chosen) for _ in range(5)), "a choice is close: take another seed"
    return chosen


def main() -> None:
    torch.manual_seed(0)
    full, shared = layer(0), layer(1)
    x = torch.randn(2, REQUESTS, TOKENS, 24)
    positions = torch.arange(TOKENS)[None].expand(REQUESTS, -1)
    angles = GlmMoeDsaRotaryEmbedding(config())(x[0], positions)
    mask = torch.full((TOKENS, TOKENS), torch.finfo(torch.float32).min).triu(1).expand(REQUESTS, 1, -1, -1)
    with torch.no_grad():
        rows, _, chosen = full(x[0], angles, mask)
        after, _, _ = shared(x[1], angles, mask, prev_topk_indices=chosen)
        inputs = (x[0], full.q_a_layernorm(full.q_a_proj(x[0])), angles, mask[:, 0], positions)
        half_split = DeepseekV32Indexer(config(), 0)
        half_split.load_state_dict(full.indexer.state_dict())
        out = {
            "x": x,
            "full/rows": rows,
            "full/chosen": clear(full.indexer, *inputs),
            "half_split/chosen": clear(half_split, *inputs),
            "shared/rows": after,
        }
    for name, made in (("full", full), ("shared", shared)):
        out |= {f"{name}/weight.{key}": weight for key, weight in made.named_parameters()}
    arrays: dict[str, Any] = {key: value.detach().numpy() for key, value in out.items()}
    np.savez_compressed(pathlib.Path(__file__).with_name("dsa.npz"), **arrays)


if __name__ == "__main__":
    main()
