"""Attention written a second time, in NumPy float64, head by head and token by token: what the programs must equal.

Keys and values of every head are made from the hidden states of all tokens; nothing is absorbed, cached or paged.
"""

import numpy as np


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def turn(x, angles, interleaved):
    """Pairs of values as complex numbers, turned by e^(i angle); the order of the result does not matter to a score."""
    pairs = angles.shape[-1]
    x, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :pairs], x[..., pairs:])
    turned = (first + 1j * second) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag, rest], axis=-1)


def softmax_attention(query, keys, values, scale, window=0, sink=None):
    """One head: rows are the last len(query) of the tokens."""
    first = len(keys) - len(query)
    out = []
    for i, q in enumerate(query):
        begin = max(0, first + i + 1 - window) if window else 0
        scores = keys[begin : first + i + 1] @ q * scale
        weights = np.exp(scores - scores.max())
        extra = 0.0 if sink is None else np.exp(sink - scores.max())
        out.append(weights @ values[begin : first + i + 1] / (weights.sum() + extra))
    return np.stack(out)


def mla(shape, w, hidden, new, scale, eps, angles=None, interleaved=False):
    """Outputs of the last `new` of one request's tokens. `w` has the checkpoint's kv_b_proj and no w_kc, w_vc."""
    if shape.q_lora:
        both = hidden @ w["fused_qkv_a_proj"].T
        query = norm(both[:, : shape.q_lora], w["q_a_norm"], eps) @ w["q_b_proj"].T
        latent = both[:, shape.q_lora :]
    else:
        query, latent = hidden @ w["q_proj"].T, hidden @ w["kv_a_proj"].T
    rope = latent[:, shape.kv_lora :]
    expanded = norm(latent[:, : shape.kv_lora], w["kv_a_norm"], eps) @ w["kv_b_proj"].T
    heads = []
    for h in range(shape.heads):
        width, both = shape.nope + shape.rope, shape.nope + shape.v
        q, kv = query[:, h * width : (h + 1) * width], expanded[:, h * both : (h + 1) * both]
        q_nope, q_rope, k_rope = q[:, : shape.nope], q[:, shape.nope :], rope
        if angles is not None:
            q_rope, k_rope = turn(q_rope, angles, interleaved), turn(rope, angles, interleaved)
        q, k = np.concatenate([q_nope, q_rope], axis=1), np.concatenate([kv[:, : shape.nope], k_rope], axis=1)
        heads.append(softmax_attention(q[-new:], k, kv[:, shape.nope :], scale))
    out = np.concatenate(heads, axis=1)
    if shape.output_gate:
        out = out / (1 + np.exp(-hidden[-new:] @ w["gate_proj"].T))
    return out @ w["o_proj"].T


def gqa(shape, w, hidden, new, scale, eps, angles=None):
    """Outputs of the last `new` of one request's tokens. `w` has the checkpoint's q, k and v apart."""
    dim = shape.head_dim
    q, k, v = (hidden @ w[f"{n}_proj"].T + (w[f"{n}_bias"] if shape.bias else 0.0) for n in "qkv")
    heads = []
    for h in range(shape.heads):
        g = h // (shape.heads // shape.kv_heads)
        query, key, value = q[:, h * dim : (h + 1) * dim], k[:, g * dim : (g + 1) * dim], v[:, g * dim : (g + 1) * dim]
        if shape.qk_norm:
            query, key = norm(query, w["qk_norm"][:dim], eps), norm(key, w["qk_norm"][dim:], eps)
        if angles is not None:
            query, key = turn(query, angles, False), turn(key, angles, False)
        sink = w["sinks"][h] if shape.sinks else None
        heads.append(softmax_attention(query[-new:], key, value, scale, shape.window, sink))
    return np.concatenate(heads, axis=1) @ w["o_proj"].T + (w["o_bias"] if shape.bias else 0.0)
