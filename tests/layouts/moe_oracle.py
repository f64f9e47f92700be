"""A mixture of experts in NumPy float64, token by token and expert by expert; random problems to hold it against."""

import jax
import jax.numpy as jnp
import numpy as np

from layouts.dense.activation import ClampedSwiGLU, SiTU, SwiGLU
from layouts.dense.reference import GatedMLP
from layouts.moe import MoE
from layouts.moe.reference import Experts, Latent, Mixture, MoEWeights
from layouts.moe.router import Router

EXPERTS, TOPK = 16, 4

MIXTURES = {
    "sigmoid in groups, shared": Mixture(Router(TOPK, "sigmoid", scaling=2.5, groups=4, group_topk=2), SwiGLU()),
    "sigmoid, latent, shared": Mixture(Router(TOPK, "sigmoid", scaling=1.5), SiTU(4.0, 25.0), eps=1e-5),
    "softmax": Mixture(Router(TOPK, "softmax"), SwiGLU()),
    "softmax of chosen, biases": Mixture(Router(TOPK, "softmax_of_chosen"), ClampedSwiGLU(0.5)),
}


def weights_of(kind: str, hidden: int = 16, width: int = 8, latent: int = 8, seed: int = 0) -> MoEWeights:
    """Random float32 weights with the parts that the kind names."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)

    inner = latent if "latent" in kind else hidden
    biased, shared = "biases" in kind, "shared" in kind
    return MoEWeights(
        router=normal(EXPERTS, hidden),
        experts=Experts(
            normal(EXPERTS, 2, width, inner),
            normal(EXPERTS, inner, width),
            normal(EXPERTS, 2, width) if biased else None,
            normal(EXPERTS, inner) if biased else None,
        ),
        router_bias=normal(EXPERTS) if biased else None,
        correction_bias=normal(EXPERTS) if "sigmoid" in kind else None,
        latent=Latent(normal(latent, hidden), normal(hidden, latent), normal(latent) + 1) if "latent" in kind else None,
        shared=GatedMLP(normal(2, 2 * width, hidden), normal(hidden, 2 * width)) if shared else None,
    )


def shape_of(weights: MoEWeights, mixture: Mixture) -> MoE:
    """The shape that such weights have."""
    w13, latent, shared = weights.experts.w13, weights.latent, weights.shared
    return MoE(
        hidden=weights.router.shape[1],
        experts=w13.shape[0],
        topk=mixture.router.topk,
        intermediate=w13.shape[2],
        latent=0 if latent is None else latent.down.shape[0],
        shared_intermediate=0 if shared is None else shared.down.shape[1],
        bias=weights.router_bias is not None,
        correction_bias=weights.correction_bias is not None,
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def act(kind, gate, up):
    if "latent" in kind:
        return 4 * np.tanh(gate / 4) * sigmoid(gate) * 25 * np.tanh(up / 25)
    if "biases" in kind:
        gate, up = np.minimum(gate, 0.5), np.clip(up, -0.5, 0.5)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    return gate * sigmoid(gate) * up


def bias_of(bias, expert):
    return 0 if bias is None else bias[expert]


def choose(kind, logits, bias):
    """(expert, weight) pairs of one token, written from the description of each router."""
    if "softmax" in kind:
        # softmax over all, renormalised over the chosen = softmax over the chosen
        best = sorted(range(EXPERTS), key=lambda e: -logits[e])[:TOPK]
        odds = [np.exp(logits[e] - max(logits)) for e in best]
        return [(e, o / sum(odds)) for e, o in zip(best, odds, strict=True)]
    scores, allowed = sigmoid(logits), list(range(EXPERTS))
    wanted = scores + bias
    if "groups" in kind:
        groups = [range(4 * g, 4 * g + 4) for g in range(4)]
        strength = [sum(sorted((wanted[e] for e in group), reverse=True)[:2]) for group in groups]
        kept = sorted(range(4), key=lambda g: -strength[g])[:2]
        allowed = [e for g in kept for e in groups[g]]
    best = sorted(allowed, key=lambda e: -wanted[e])[:TOPK]
    scaling = 2.5 if "groups" in kind else 1.5
    return [(e, scaling * scores[e] / sum(scores[b] for b in best)) for e in best]


def oracle(kind, weights, x):
    """Output rows, float64."""
    w = jax.tree.map(lambda a: np.asarray(a, np.float64), weights)
    rows = []
    for token in np.asarray(x, np.float64):
        logits = w.router @ token + (0 if w.router_bias is None else w.router_bias)
        inner = token if w.latent is None else w.latent.down @ token
        total = np.zeros_like(inner)
        for expert, share in choose(kind, logits, w.correction_bias):
            gate, up = w.experts.w13[expert] @ inner + bias_of(w.experts.w13_bias, expert)
            out = w.experts.w2[expert] @ act(kind, gate, up)
            total = total + share * (out + bias_of(w.experts.w2_bias, expert))
        if w.latent is not None:
            total = w.latent.up @ (total / np.sqrt((total**2).mean() + 1e-5) * w.latent.norm)
        if w.shared is not None:
            total = total + w.shared.down @ act(kind, *(w.shared.gate_up @ token))
        rows.append(total)
    return np.array(rows)
