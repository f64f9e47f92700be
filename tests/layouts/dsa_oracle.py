"""Sparse attention written a second time, in NumPy float64, row by row over the tokens that it chooses."""

import numpy as np

from tests.layouts.attention_oracle import norm, turn


def scores(indexer, w, hidden, low, new, angles, interleaved, eps):
    """Of each of the last `new` of one request's tokens: its scores of all tokens that it sees."""
    key = hidden @ w["index_k_proj"].T
    key = (key - key.mean(axis=1, keepdims=True)) / np.sqrt(key.var(axis=1, keepdims=True) + eps)
    key = key * w["index_k_norm"][: indexer.head_dim] + w["index_k_norm"][indexer.head_dim :]
    query = (low if indexer.q_lora else hidden) @ w["index_q_b_proj"].T
    query = query.reshape(len(hidden), indexer.heads, indexer.head_dim)
    if angles is not None:
        key = turn(key, angles, interleaved)
        query = np.stack([turn(query[:, h], angles, interleaved) for h in range(indexer.heads)], axis=1)
    weight = hidden @ w["index_weights_proj"].T / np.sqrt(indexer.heads * indexer.head_dim)
    rows = range(len(hidden) - new, len(hidden))
    return [np.maximum(key[: row + 1] @ query[row].T, 0) @ weight[row] for row in rows]


def choice(topk, scores):
    """Sorted positions of the highest scores of each row, equal ones by the lowest position.

    Scores that differ must differ by more than rounding, or the programs could rightly choose otherwise.
    """
    chosen = []
    for score in scores:
        order = np.lexsort((np.arange(len(score)), -score))
        ranked = score[order]
        if len(score) > topk:
            gap = ranked[topk - 1] - ranked[topk]
            assert gap == 0 or gap > 1e-4, "a choice is close: take another seed"
        chosen.append(np.sort(order[:topk]))
    return chosen


def low_rank(shape, w, hidden, eps):
    """What queries are made of, and the latent before its norm."""
    if not shape.q_lora:
        return hidden, hidden @ w["kv_a_proj"].T
    both = hidden @ w["fused_qkv_a_proj"].T
    return norm(both[:, : shape.q_lora], w["q_a_norm"], eps), both[:, shape.q_lora :]


def attention(shape, w, hidden, chosen, scale, eps, angles, interleaved):
    """Outputs of the last len(chosen) of one request's tokens over the positions that each chooses."""
    low, latent = low_rank(shape, w, hidden, eps)
    query = low @ w["q_b_proj" if shape.q_lora else "q_proj"].T
    expanded = norm(latent[:, : shape.kv_lora], w["kv_a_norm"], eps) @ w["kv_b_proj"].T
    query = query.reshape(len(hidden), shape.heads, -1)
    expanded = expanded.reshape(len(hidden), shape.heads, -1)
    out = []
    for row, positions in zip(range(len(hidden) - len(chosen), len(hidden)), chosen, strict=True):
        heads = []
        for h in range(shape.heads):
            key = np.concatenate([expanded[positions, h, : shape.nope], latent[positions, shape.kv_lora :]], axis=1)
            q = query[row, h][None]
            if angles is not None:
                rotary = turn(key[:, shape.nope :], angles[positions], interleaved)
                key = np.concatenate([key[:, : shape.nope], rotary], axis=1)
                q = np.concatenate([q[:, : shape.nope], turn(q[:, shape.nope :], angles[[row]], interleaved)], axis=1)
            weights = np.exp((scores := key @ q[0] * scale) - scores.max())
            heads.append(weights @ expanded[positions, h, shape.nope :] / weights.sum())
        out.append(np.concatenate(heads))
    return np.stack(out) @ w["o_proj"].T
