"""Make decoders/kimi-k3: a tiny Kimi K3 of torchtitan under the checkpoint's tensor names, and its logits in float32.

Source: pytorch/torchtitan, commit 41447a4330a6dae131f7765598c1756bc9969d52, `torchtitan/models/kimi_k3`: its model, and
its own adapter for the names. Run aside, in an environment of its own (the suite needs no torch):
    pip install torch==2.13.0 transformers==5.24.0 einops numpy safetensors tyro && pip install --no-deps spmd-types
    pip download --no-deps fla-core==0.6.0 && unzip fla_core-0.6.0-*.whl
    PYTHONPATH=<torchtitan checkout> python tests/goldens/make_kimi_k3.py fla/ops/kda
Kernels without a CPU form are replaced, so that only formulas are compared: KDA by the naive gate and recurrence of
flash-linear-attention, the grouped GEMM (bfloat16 only) by a loop in float32, flex attention by a causal softmax.

Constants differ from the published ones (`CONSTANTS`), so that a program that has those built in is found out; every
norm differs from one and the correction bias from zero. The checkpoint has a pair of attention-residual weights in
layer 0 that nothing depends on, as no block stands before it: they are random too.
"""

# torch and torchtitan live in another environment
# pyright: reportMissingImports=false

import importlib.util
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file

# packages with Triton kernels: imported beside the functions that are called, called by nothing here
TRITON = ("triton", "triton.language", "fla.backends", "fla.utils", "fla.ops.utils", "fla.ops.utils.cache")
TRITON += ("fla.ops.utils.index", "fla.ops.utils.op", "fla.ops.utils.softplus")
for absent in ("torchtitan.distributed.minimal_async_ep", "fla", "fla.ops", "fla.ops.kda"):
    sys.modules[absent] = mock.MagicMock()

from torchtitan.models import kimi_k3  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.common.moe import TokenChoiceTopKRouter  # noqa: E402
from torchtitan.models.kimi_k3.kda import KimiKDAKernel  # noqa: E402
from torchtitan.models.kimi_k3.moe import KimiFeedForward, KimiGroupedExperts  # noqa: E402

OUT = pathlib.Path(__file__).parent / "decoders" / "kimi-k3"
PUBLISHED = pathlib.Path(__file__).parents[2] / "layouts" / "models" / "presets" / "kimi-k3.json"
REQUESTS, TOKENS, KEPT, LEAST_GAP = 2, 40, 24, 1e-4
# 0-based; a block of attention residuals opens at layers 0, 2 and 4
FULL_ATTENTION, LAYERS = (2, 4), 5
CONSTANTS = {"activation_situ_beta": 2.0, "activation_situ_linear_beta": 5.0, "gate_lower_bound": -3.0}
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "attn_res_block_size": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "intermediate_size": 32,
    "routed_expert_hidden_size": 16,
    "moe_intermediate_size": 16,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "num_shared_experts": 2,
}
LINEAR = {"num_heads": 16, "head_dim": 8, "short_conv_kernel_size": 4}
# torchtitan's name of each size
NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "dense_hidden_dim",
    "routed_expert_hidden_size": "latent_dim",
    "moe_intermediate_size": "expert_hidden_dim",
    "num_experts_per_token": "top_k",
}


def config_json() -> dict[str, Any]:
    """The published file's keys with small sizes; neither quantisation nor vision."""
    config = json.loads(PUBLISHED.read_text())
    text = config["text_config"]
    layers = {"full_attn_layers": [i + 1 for i in FULL_ATTENTION]}
    layers["kda_layers"] = [i + 1 for i in range(LAYERS) if i not in FULL_ATTENTION]
    text |= SIZES | {"dtype": "float32", "max_position_embeddings": 4096}
    text |= {key: value for key, value in CONSTANTS.items() if key in text}
    text["linear_attn_config"] |= LINEAR | layers | {"gate_lower_bound": CONSTANTS["gate_lower_bound"]}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    for values in (config, text):
        values |= special
        values.pop("auto_map")
    for key in ("vision_config", "media_placeholder_token_id", "image_placeholder"):
        config.pop(key)
    text.pop("quantization_config")
    return config | {"dtype": "float32"}


def model_config() -> Any:
    sizes = {NAMES.get(key, key): size for key, size in SIZES.items() if key != "num_key_value_heads"}
    sizes |= {"kda_head_dim": LINEAR["head_dim"], "conv_kernel_size": LINEAR["short_conv_kernel_size"]}
    made = kimi_k3._kimi_k3_config(
        full_attention_layers=set(FULL_ATTENTION), vision_encoder=None, attn_backend="flex", **sizes
    )
    for kind in (KimiFeedForward.Config, KimiGroupedExperts.Config):
        for _, part, _, _ in made.traverse(kind):
            part.beta, part.linear_beta = CONSTANTS["activation_situ_beta"], CONSTANTS["activation_situ_linear_beta"]
    for _, part, _, _ in made.traverse(KimiKDAKernel.Config):
        part.lower_bound = CONSTANTS["gate_lower_bound"]
    return made


def grouped(self, *, A, B_t, offs):
    """torch._grouped_mm in float32."""
    starts = [0, *offs.tolist()]
    return torch.cat([A[starts[e] : starts[e + 1]] @ B_t[e] for e in range(len(B_t))])


def causal(self, q, k, v, *, attention_masks=None, scale=None):
    """Softmax attention of one request; tokens x heads x width."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
    return torch.einsum("hqk,khv->qhv", scores.masked_fill(~seen, -torch.inf).softmax(dim=-1), v)


def kda_from(folder: str):
    """The kernel's forward out of the naive functions in `naive.py` and `gate.py`."""
    modules = []
    for name in ("naive", "gate"):
        spec = importlib.util.spec_from_file_location(f"fla_{name}", pathlib.Path(folder) / f"{name}.py")
        assert spec is not None and spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        with mock.patch.dict(sys.modules, {absent: mock.MagicMock() for absent in TRITON}):
            spec.loader.exec_module(modules[-1])
    naive, gate = modules

    def unit(x):
        return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)

    def forward(self, q, k, v, raw, beta, A_log, dt_bias):
        decay = gate.naive_kda_lowerbound_gate(raw, A_log, dt_bias.reshape(-1), self.lower_bound)
        return naive.naive_recurrent_kda(unit(q), unit(k), v, decay, beta.sigmoid())[0]

    return forward


def draw(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Random weights at which every part of the model shows in the logits."""
    if "norm" in name:
        return tensor.uniform_(0.5, 1.5)
    if name.endswith("A_log"):
        return tensor.uniform_(-1.5, 1.0)
    if name.endswith("dt_bias") or "tok_embeddings" in name:
        return tensor.normal_()
    if name.endswith("expert_bias_E"):
        return tensor.normal_(0.0, 0.2)
    gain = 2.0 if "res_proj" in name or "w1" in name or "w3" in name else 1.0
    return tensor.normal_(0.0, gain / math.sqrt(tensor.shape[-1]))


def gaps(router: Any, args: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    """A router's distance between the last expert that it takes and the first that it leaves."""
    wanted = (found[2] + args[1]).sort(dim=-1, descending=True).values
    router.least_gap = min(router.least_gap, float((wanted[:, router.top_k - 1] - wanted[:, router.top_k]).min()))


def attempts() -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
    """Model, tokens and logits of one seed after another."""
    for seed in range(100):
        torch.manual_seed(seed)
        model = model_config().build().float().eval()
        for name, tensor in model.state_dict().items():
            draw(name, tensor)
        routers = [part for part in model.modules() if isinstance(part, TokenChoiceTopKRouter)]
        for router in routers:
            router.least_gap = math.inf
            router.register_forward_hook(gaps)
        tokens = torch.randint(SIZES["vocab_size"], (REQUESTS, TOKENS), dtype=torch.int32)
        logits = torch.stack([model(request)[-KEPT:] for request in tokens])
        least = min(router.least_gap for router in routers)
        print(f"seed {seed}: least router gap {least:.2e}, logits of std {logits.std():.2f}")
        if least > LEAST_GAP:
            yield model, tokens, logits


def checkpoint(model: Any) -> dict[str, torch.Tensor]:
    tensors = kimi_k3.KimiK3StateDictAdapter(model.config, None).to_hf(model.state_dict())
    for name, tensor in tensors.items():
        if "layers.0.self_attention_res" in name:
            draw(name, tensor)
    return {name: tensor.contiguous() for name, tensor in tensors.items() if "tokens_per_expert" not in name}


@torch.no_grad()
def main() -> None:
    torch.Tensor.bfloat16 = lambda self: self
    KimiGroupedExperts._grouped_mm = grouped
    FlexAttention.forward = causal
    KimiKDAKernel.forward = kda_from(sys.argv[1])
    model, tokens, logits = next(attempts())
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "config.json").write_text(json.dumps(config_json(), indent=2) + "\n")
    save_file(checkpoint(model), OUT / "model.safetensors")
    np.savez_compressed(OUT / "logits.npz", tokens=tokens.numpy(), logits=logits.numpy())


if __name__ == "__main__":
    main()
