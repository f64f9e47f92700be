"""Weights of dense and MoE layers out of the tensors that Hugging Face checkpoints hold for them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from layouts.checkpoint.names.claims import Claims
from layouts.checkpoint.views import Split, Stacked, Transposed, View
from layouts.dense.reference import GatedMLP
from layouts.models.layer import Ffn
from layouts.moe import MoE
from layouts.moe.reference import Experts, Latent, MoEWeights


class MoENames(NamedTuple):
    """Modules of a mixture, below the layer: itself, its router, and gate, up and down of one expert."""

    module: str = "mlp."
    router: str = "gate"
    expert: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


def feed_forward(names: MoENames, claims: Claims, layer: str, ffn: Ffn) -> Any:
    """Weights of a layer whose experts are stored one by one, or whose MLP is dense."""
    if isinstance(ffn, MoE):
        return _moe(claims, f"{layer}{names.module}", names.router, ffn, partial(_experts, names.expert))
    gated = f"{layer}mlp."
    # transformers saves the dense layers of some models under the name of their mixtures
    if not claims.has(f"{gated}gate_proj.weight") and claims.has(f"{layer}{names.module}gate_proj.weight"):
        gated = f"{layer}{names.module}"
    return _gated(claims, gated, ffn.hidden, ffn.intermediate)


def interleaved_experts(claims: Claims, layer: str, ffn: Ffn) -> Any:
    """Weights of a layer whose experts are stored together, gate and up channels by turns."""
    assert isinstance(ffn, MoE)
    return _moe(claims, f"{layer}mlp.", "router", ffn, _together)


def _moe(
    claims: Claims, module: str, router: str, moe: MoE, experts: Callable[[Claims, str, MoE], Experts]
) -> MoEWeights:
    hidden, latent, shared = moe.hidden, moe.latent, moe.shared_intermediate
    made: dict[str, Any] = {
        "router": claims.tensor(f"{module}{router}.weight", (moe.experts, hidden)),
        "experts": experts(claims, f"{module}experts.", moe),
    }
    if moe.bias:
        made["router_bias"] = claims.tensor(f"{module}{router}.bias", (moe.experts,))
    if moe.correction_bias:
        made["correction_bias"] = claims.tensor(f"{module}{router}.e_score_correction_bias", (moe.experts,))
    if latent:
        down: Any = claims.tensor(f"{module}routed_expert_down_proj.weight", (latent, hidden))
        up: Any = claims.tensor(f"{module}routed_expert_up_proj.weight", (hidden, latent))
        norm: Any = claims.tensor(f"{module}routed_expert_norm.weight", (latent,))
        made["latent"] = Latent(down, up, norm)
    if shared:
        made["shared"] = _gated(claims, f"{module}shared_experts.", hidden, shared)
    return MoEWeights(**made)


def _gated(claims: Claims, module: str, hidden: int, width: int) -> GatedMLP:
    gate_up: Any = Stacked(
        tuple(claims.tensor(f"{module}{name}_proj.weight", (width, hidden)) for name in ("gate", "up"))
    )
    down: Any = claims.tensor(f"{module}down_proj.weight", (hidden, width))
    return GatedMLP(gate_up, down)


def _experts(names: tuple[str, str, str], claims: Claims, module: str, moe: MoE) -> Experts:
    gate, up, down = names
    inner, width = moe.intermediate, moe.width

    def pair(expert: int) -> Stacked:
        return Stacked(tuple(claims.tensor(f"{module}{expert}.{name}.weight", (inner, width)) for name in (gate, up)))

    w13: Any = Stacked(tuple(pair(expert) for expert in range(moe.experts)))
    w2: Any = Stacked(
        tuple(claims.tensor(f"{module}{expert}.{down}.weight", (width, inner)) for expert in range(moe.experts))
    )
    return Experts(w13, w2)


def _together(claims: Claims, module: str, moe: MoE) -> Experts:
    count, inner, width = moe.experts, moe.intermediate, moe.width

    def by_output(name: str, out: int, inp: int) -> View:
        """Experts, outputs, inputs: as MXFP4 stores them."""
        held = claims.blocks(f"{module}{name}", (count, out, inp))
        return held or Transposed(claims.tensor(f"{module}{name}", (count, inp, out)), (0, 2, 1))

    bias = claims.tensor(f"{module}gate_up_proj_bias", (count, 2 * inner))
    w13: Any = Transposed(Split(by_output("gate_up_proj", 2 * inner, width), 1, inner), (0, 2, 1, 3))
    w2: Any = by_output("down_proj", width, inner)
    w13_bias: Any = Transposed(Split(bias, 1, inner), (0, 2, 1))
    w2_bias: Any = claims.tensor(f"{module}down_proj_bias", (count, width))
    return Experts(w13, w2, w13_bias, w2_bias)
