"""Make decoders/NAME/: whole decoders of transformers, small and with random float32 weights, and their logits.

Each folder is a checkpoint as `save_pretrained` writes it (`config.json`, `model.safetensors`) and `logits.npz`: the
`tokens` of two requests, and the `logits` of the last 24 of them from one forward pass over all (float32, eager
attention). Every norm, bias, sink and correction bias is drawn, so that one dropped or swapped shows in the logits.

Two programs agree on a top-k (of a router, its groups or an indexer) only where its boundary is clear of rounding.
Seeds are tried from 0 until no token of any layer has a gap below LEAST_GAP there; seed and gap are printed.

Keys in which published configs say more than transformers writes (`topk_method`, `linear_attn_config`, ...) are handed
to its configs and come back in `config.json`. The epsilon is 1e-6 throughout: some norms of these classes hold that
value whatever `rms_norm_eps` says.

Run aside, in an environment of its own (the suite needs no torch):
    pip install torch==2.13.0 transformers==5.24.0 numpy
    python tests/goldens/make_decoders.py
"""

# torch and transformers live in another environment
# pyright: reportMissingImports=false

import itertools
import pathlib
import sys
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode

REQUESTS, TOKENS, LAST = 2, 40, 24
LEAST_GAP = 1e-4
MASKED = -1e30  # no score that a mask has not pushed down is lower
FOLDER: Final = pathlib.Path(__file__).with_name("decoders")

COMMON: Final[dict[str, Any]] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROPE: Final[dict[str, Any]] = {"rope_type": "default", "rope_theta": 500.0}
YARN: Final[dict[str, Any]] = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 4.0}
YARN_FROM: Final = {"original_max_position_embeddings": 16}
GQA: Final[dict[str, Any]] = {"head_dim": 8, "num_key_value_heads": 2}
MLA: Final[dict[str, Any]] = {
    "num_key_value_heads": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 4,
}
EXPERTS: Final[dict[str, Any]] = {"num_experts_per_tok": 4, "moe_intermediate_size": 16}
NOAUX: Final[dict[str, Any]] = {"topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5}

# folder -> (name of the classes, what its config adds to COMMON)
DECODERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "deepseek_v3": (
        "DeepseekV3",
        {
            **MLA,
            **EXPERTS,
            **NOAUX,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "q_lora_rank": 24,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "num_mtp_layers": 0,
            "rope_parameters": {**YARN, **YARN_FROM, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.8},
        },
    ),
    "kimi_linear": (
        "KimiLinear",
        {
            **MLA,
            **EXPERTS,
            **NOAUX,
            "num_hidden_layers": 4,
            "num_local_experts": 16,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "mla_use_nope": True,
            "linear_attn_config": {
                "full_attn_layers": [3],
                "kda_layers": [1, 2, 4],
                "head_dim": 4,
                "num_heads": 16,
                "short_conv_kernel_size": 4,
            },
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **GQA,
            **EXPERTS,
            "num_hidden_layers": 3,
            "mlp_only_layers": [0],
            "num_experts": 16,
            "norm_topk_prob": True,
            "rope_parameters": ROPE,
        },
    ),
    "qwen3": ("Qwen3", {**GQA, "num_hidden_layers": 3, "tie_word_embeddings": True, "rope_parameters": ROPE}),
    "llama": (
        "Llama",
        {
            **GQA,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        {
            **MLA,
            **EXPERTS,
            **NOAUX,
            "num_hidden_layers": 4,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "indexer_types": ["full", "shared", "full", "shared"],
            "index_topk": 8,
            "index_n_heads": 16,
            "index_head_dim": 12,
            "q_lora_rank": 24,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": ROPE,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            **GQA,
            "intermediate_size": 16,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 8,
            "num_local_experts": 16,
            "num_experts_per_tok": 4,
            "swiglu_limit": 1.5,
            "rope_parameters": {**YARN, **YARN_FROM, "beta_slow": 1.0, "truncate": False},
        },
    ),
}


class Boundaries(TorchFunctionMode):
    """The least gap between the last entry that a top-k takes and the first that it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.least = float("inf")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, torch.Tensor.topk):
            count = kwargs["k"] if "k" in kwargs else args[1]
            scores = args[0].sort(dim=-1, descending=True).values
            if count < scores.shape[-1]:
                taken, left = scores[..., count - 1], scores[..., count]
                # where even the last one taken is masked, the causal mask drops it whichever it is
                open_ = taken > MASKED
                self.least = min(self.least, (taken - left)[open_].min().item())
        return func(*args, **kwargs)


def draw(name: str, weight: torch.Tensor, transposed: bool) -> None:
    """Fill a weight at the scale at which its part of the layer matters; `transposed`: experts are (in, out)."""
    last = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if last.endswith(("norm", "layernorm")):
        weight.uniform_(0.5, 1.5)
    elif last == "A_log":
        weight.uniform_(-1.5, 1.0)
    elif last == "e_score_correction_bias":
        weight.normal_(0.0, 0.1)
    elif weight.ndim == 1 or last.endswith("_bias") or "embed" in name:
        weight.normal_(0.0, 1.0)
    elif last == "conv1d":
        weight.normal_(0.0, 0.5)
    else:
        weight.normal_(0.0, weight.shape[-2 if transposed and weight.ndim == 3 else -1] ** -0.5)


def decoder(kind: str, values: dict[str, Any], seed: int) -> Any:
    """A model of the class with weights drawn from the seed."""
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **values}, dtype="float32")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")._from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model = model.float().eval()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            draw(name, weight, transposed=kind == "GptOss")
    return model


def clear_seed(kind: str, values: dict[str, Any], first: int = 0) -> tuple[int, float, Any, torch.Tensor, torch.Tensor]:
    """The first seed from `first` on whose top-k boundaries are all clear: (seed, gap, model, tokens, logits)."""
    for seed in itertools.count(first):
        model = decoder(kind, values, seed)
        tokens = torch.randint(COMMON["vocab_size"], (REQUESTS, TOKENS))
        boundaries = Boundaries()
        with torch.no_grad(), boundaries:
            logits = model(tokens, use_cache=False).logits
        if boundaries.least > LEAST_GAP:
            return seed, boundaries.least, model, tokens, logits
    raise AssertionError("unreachable")


def write(folder: pathlib.Path, model: Any, tokens: torch.Tensor, logits: torch.Tensor) -> np.ndarray:
    """The folder of a decoder; the logits that are kept."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    kept = logits[:, -LAST:].numpy()
    np.savez_compressed(folder / "logits.npz", tokens=tokens.numpy().astype(np.int32), logits=kept)
    return kept


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or DECODERS:
        kind, values = DECODERS[name]
        seed, gap, model, tokens, logits = clear_seed(kind, values)
        folder = FOLDER / name
        kept = write(folder, model, tokens, logits)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: seed {seed}, least gap {gap:.1e}, logits rms {kept.std():.2f}, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
