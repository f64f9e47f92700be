"""Make kda.npz: what pure-torch models that nobody here wrote compute for KDA on small random weights, in float32.

`layer_*`: the KDA layer of transformers' KimiLinear: softplus decay and low-rank output gate (`softplus`), and with the
decay gate of its Glm5Next, which has a lower bound, and a full-rank output gate, as Kimi K3 has (`bounded`). A prompt
of 70 tokens (more than one chunk of 64), then three tokens one by one from the cache. `core_*`: the naive recurrence of
flash-linear-attention, from a state that is not zero.

Run aside, in an environment of its own (the suite needs no torch):
    pip install torch==2.13.0 transformers==5.24.0 einops numpy
    pip download --no-deps fla-core==0.6.0 && unzip fla_core-0.6.0-*.whl fla/ops/kda/naive.py
    python tests/goldens/make_kda.py fla/ops/kda/naive.py
The naive file is loaded by its path: importing the package wants Triton.
"""

# torch and transformers live in another environment
# pyright: reportMissingImports=false

import importlib.util
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

HIDDEN, HEADS, DIM, KERNEL = 24, 4, 8, 4
REQUESTS, PROMPT, AFTER = 2, 70, 3
LOWER_BOUND = -5.0


def config() -> Any:
    made = KimiLinearConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        linear_head_dim=DIM,
        linear_num_heads=HEADS,
        linear_conv_kernel_dim=KERNEL,
        layer_types=["linear_attention"],
    )
    made.linear_lower_bound = LOWER_BOUND
    return made


def layer(bounded: bool) -> Any:
    made = KimiLinearDeltaAttention(config(), layer_idx=0).float().eval()
    if bounded:
        made.forget_gate = Glm5NextTextForgetGate(config())
        made.g_a_proj = torch.nn.Identity()
        made.g_b_proj = torch.nn.Linear(HIDDEN, HEADS * DIM, bias=False)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("A_log"):
                weight.uniform_(-1.5, 1.0)
            elif name.endswith("o_norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0.0, 0.5 if "conv1d" in name else 1.0 if "dt_bias" in name else weight.shape[-1] ** -0.5)
    return made


def run_layer(name: str, bounded: bool) -> dict[str, np.ndarray]:
    made = layer(bounded)
    x = torch.randn(REQUESTS, PROMPT + AFTER, HIDDEN)
    cache = DynamicCache(config=config())
    with torch.no_grad():
        rows = [made(x[:, :PROMPT], cache=cache)]
        rows += [made(x[:, i : i + 1], cache=cache) for i in range(PROMPT, PROMPT + AFTER)]
    out = {"x": x, "rows": torch.cat(rows, dim=1), "recurrent": cache.get_recurrent_state(0, state_idx=0)}
    out["window"] = cache.get_conv_state(0, state_idx=0)[..., -(KERNEL - 1) :]
    out |= {f"weight.{key}": weight for key, weight in made.named_parameters()}
    return {f"layer_{name}/{key}": value.detach().numpy() for key, value in out.items()}


def run_core(path: str) -> dict[str, np.ndarray]:
    spec = importlib.util.spec_from_file_location("naive_kda", path)
    assert spec is not None and spec.loader is not None
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    shape = (1, PROMPT, HEADS, DIM)
    q, k = (torch.nn.functional.normalize(torch.randn(shape), dim=-1) for _ in range(2))
    v, log_decay = torch.randn(shape), -torch.nn.functional.softplus(3 * torch.randn(shape))
    beta, state = torch.rand(shape[:3]), torch.randn(1, HEADS, DIM, DIM)
    rows, last = naive.naive_recurrent_kda(q, k, v, log_decay, beta, initial_state=state, output_final_state=True)
    out = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta, "state": state, "rows": rows, "last": last}
    return {f"core/{key}": value.numpy() for key, value in out.items()}


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, Any] = {**run_layer("softplus", False), **run_layer("bounded", True), **run_core(sys.argv[1])}
    np.savez_compressed(pathlib.Path(__file__).with_name("kda.npz"), **arrays)


if __name__ == "__main__":
    main()
