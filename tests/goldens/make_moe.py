"""Make moe.npz: tiny mixtures of experts of transformers, with what they answer.

    pip install torch==2.13.0 'transformers==5.24.*' numpy    # in an environment of its own, on the CPU
    python tests/goldens/make_moe.py

Weights and inputs are random (seed 0) and stand in the file beside the outputs; gate and up are stored apart, the
order that all our families share. Wide logits and bounds within reach make every clamp and every group matter.
"""

# torch and transformers live in another environment
# pyright: reportMissingImports=false

import pathlib

import numpy as np
import torch
from transformers import DeepseekV3Config, GptOssConfig, KimiLinearConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearMoE
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

ROWS, HIDDEN, WIDTH, EXPERTS, TOPK = 12, 8, 4, 16, 4
SIZES = {"hidden_size": HIDDEN, "moe_intermediate_size": WIDTH, "num_experts_per_tok": TOPK}


def blocks():
    """Each family's block, and its router's name in it."""
    grouped = DeepseekV3Config(
        **SIZES, n_routed_experts=EXPERTS, n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5
    )
    kimi = KimiLinearConfig(**SIZES, num_experts=EXPERTS, n_shared_experts=1, routed_scaling_factor=2.446)
    qwen = Qwen3MoeConfig(**SIZES, num_experts=EXPERTS, norm_topk_prob=True)
    oss = GptOssConfig(hidden_size=HIDDEN, intermediate_size=WIDTH, num_local_experts=EXPERTS, num_experts_per_tok=TOPK)
    for config in (grouped, kimi, qwen, oss):
        config._experts_implementation = "eager"
    return {
        "deepseek_v3": (DeepseekV3MoE(grouped), "gate"),
        "kimi_linear": (KimiLinearMoE(kimi), "gate"),
        "qwen3_moe": (Qwen3MoeSparseMoeBlock(qwen), "gate"),
        "gpt_oss": (GptOssMLP(oss), "router"),
    }


def weights(block, router):
    """A block's tensors as (out, in) arrays."""
    state = {k: v.detach().numpy() for k, v in block.state_dict().items()}
    first, second = state["experts.gate_up_proj"], state["experts.down_proj"]
    found = {"router": state[f"{router}.weight"]}
    if f"{router}.bias" in state:  # this family interleaves gate and up, and stores (in, out)
        bias = state["experts.gate_up_proj_bias"]
        found |= {
            "w13": first.swapaxes(1, 2).reshape(EXPERTS, WIDTH, 2, HIDDEN).swapaxes(1, 2),
            "w2": second.swapaxes(1, 2),
            "w13_bias": bias.reshape(EXPERTS, WIDTH, 2).swapaxes(1, 2),
            "w2_bias": state["experts.down_proj_bias"],
            "router_bias": state[f"{router}.bias"],
        }
    else:
        found |= {"w13": first.reshape(EXPERTS, 2, WIDTH, HIDDEN), "w2": second}
    if f"{router}.e_score_correction_bias" in state:
        found["correction_bias"] = state[f"{router}.e_score_correction_bias"]
    if "shared_experts.gate_proj.weight" in state:
        gate, up = state["shared_experts.gate_proj.weight"], state["shared_experts.up_proj.weight"]
        found |= {"shared_gate_up": np.stack([gate, up]), "shared_down": state["shared_experts.down_proj.weight"]}
    return found


def main():
    torch.manual_seed(0)
    arrays = {}
    for name, (block, router) in blocks().items():
        for tensor in (*block.parameters(), *block.buffers()):
            torch.nn.init.normal_(tensor, std=1.0)
        x = 2 * torch.randn(1, ROWS, HIDDEN)
        with torch.no_grad():
            _, scores, experts = getattr(block, router)(x.reshape(ROWS, HIDDEN))
            out = block(x)
        dense = torch.zeros(ROWS, EXPERTS).scatter_(1, experts, scores)
        out = (out[0] if isinstance(out, tuple) else out).reshape(ROWS, HIDDEN)
        found = weights(block, router) | {"x": x[0].numpy(), "weight_of_expert": dense.numpy(), "out": out.numpy()}
        arrays |= {f"{name}.{key}": value for key, value in found.items()}
    np.savez_compressed(pathlib.Path(__file__).with_name("moe.npz"), **arrays)


if __name__ == "__main__":
    main()
