"""Make latent_moe.npz: a tiny LatentMoE of torchtitan's Kimi K3, with what it answers in float32.

Source: pytorch/torchtitan, commit 41447a4330a6dae131f7765598c1756bc9969d52, `models/kimi_k3/moe.py`. Run aside:
    pip install torch==2.13.0 numpy tyro einops && pip install --no-deps spmd-types
    PYTHONPATH=<torchtitan checkout> python tests/goldens/make_latent_moe.py
The model casts to bfloat16 before its grouped GEMM:
the cast is taken out, and the GEMM (which has no float32 form) is a loop, so that only formulas are compared.
"""

# torch and torchtitan live in another environment
# pyright: reportMissingImports=false

import pathlib
import sys
from unittest import mock

import numpy as np
import torch

# packages with Triton kernels: imported beside the MoE, called by nothing here
for name in ("torchtitan.distributed.minimal_async_ep", "fla", "fla.ops", "fla.ops.kda"):
    sys.modules[name] = mock.MagicMock()

from torchtitan.models.common import Linear  # noqa: E402
from torchtitan.models.common.moe import RoutedExperts, TokenChoiceTopKRouter  # noqa: E402
from torchtitan.models.common.nn_modules import RMSNorm  # noqa: E402
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher  # noqa: E402
from torchtitan.models.kimi_k3.moe import KimiFeedForward, KimiGroupedExperts, KimiLatentMoE  # noqa: E402

ROWS, HIDDEN, LATENT, WIDTH, EXPERTS, TOPK, EPS = 12, 12, 8, 4, 16, 4, 1e-5


def grouped(self, *, A, B_t, offs):
    """torch._grouped_mm in float32."""
    starts = [0, *offs.tolist()]
    return torch.cat([A[starts[e] : starts[e + 1]] @ B_t[e] for e in range(len(B_t))])


def linear(inp, out):
    return Linear.Config(in_features=inp, out_features=out)


def block():
    situ = {"beta": 4.0, "linear_beta": 25.0}
    shared = 2 * WIDTH
    return KimiLatentMoE.Config(
        num_experts=EXPERTS,
        router=TokenChoiceTopKRouter.Config(
            num_experts=EXPERTS, top_k=TOPK, gate=linear(HIDDEN, EXPERTS), score_func="sigmoid", route_norm=True
        ),
        routed_down=linear(HIDDEN, LATENT),
        routed_norm=RMSNorm.Config(normalized_shape=LATENT, eps=EPS),
        routed_up=linear(LATENT, HIDDEN),
        routed_experts=RoutedExperts.Config(
            inner_experts=KimiGroupedExperts.Config(dim=LATENT, hidden_dim=WIDTH, num_experts=EXPERTS, **situ),
            token_dispatcher=LocalTokenDispatcher.Config(num_experts=EXPERTS, top_k=TOPK),
        ),
        shared_experts=KimiFeedForward.Config(
            w1=linear(HIDDEN, shared), w2=linear(shared, HIDDEN), w3=linear(HIDDEN, shared), **situ
        ),
        load_balance_coeff=1e-3,
    ).build()


def main():
    torch.manual_seed(0)
    torch.Tensor.bfloat16 = lambda self: self
    KimiGroupedExperts._grouped_mm = grouped
    moe = block()
    moe.expert_bias_E = torch.randn(EXPERTS)
    for tensor in moe.parameters():
        torch.nn.init.normal_(tensor)
    x = 2 * torch.randn(ROWS, HIDDEN)
    with torch.no_grad():
        out = moe.eval()(x)
    s = {k: v.numpy() for k, v in moe.state_dict().items()}
    inner, shared = "routed_experts.inner_experts.", "shared_experts."
    np.savez_compressed(
        pathlib.Path(__file__).with_name("latent_moe.npz"),
        router=s["router.gate.weight"],
        correction_bias=moe.expert_bias_E.numpy(),
        w13=np.stack([s[f"{inner}w1_EFD"], s[f"{inner}w3_EFD"]], axis=1),
        w2=s[f"{inner}w2_EDF"],
        latent_down=s["routed_down.weight"],
        latent_norm=s["routed_norm.weight"],
        latent_up=s["routed_up.weight"],
        shared_gate_up=np.stack([s[f"{shared}w1.weight"], s[f"{shared}w3.weight"]]),
        shared_down=s[f"{shared}w2.weight"],
        x=x.numpy(),
        out=out.numpy(),
    )


if __name__ == "__main__":
    main()
