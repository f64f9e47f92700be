"""KDA decode and verification by others, at the shapes of `experiments/bench_kda_step.py`: states read and written."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments import bench_kda_step as bench
from experiments.peers.case import Case
from experiments.peers.installed import module
from experiments.peers.timing import Run, tensor
from layouts.kda.reference import Tokens

_HEADS = 96
_TOKENS = (1, 5)
_FEWEST = 64  # requests


def cases(count: int) -> Iterator[Case]:
    """The first `count` shapes of all heads, one token and five, the more of them first."""
    peers = {
        "flash-linear-attention, recurrent": recurrent, "torch.compile": compiled,
        "flash-linear-attention, chunks": chunked,
    }  # fmt: skip
    chosen = {shape for shape in bench.TIMED if shape[1] == _HEADS and shape[2] in _TOKENS and shape[0] >= _FEWEST}
    for requests, heads, tokens in sorted(chosen, key=lambda shape: (shape[0], -shape[2]))[:count]:
        shape = {"requests": requests, "heads": heads, "tokens": tokens}
        yield Case("kda_step", shape, partial(inputs, requests, heads, tokens), exact, peers)


def inputs(requests: int, heads: int, count: int) -> tuple[Tokens, jax.Array]:
    """Tokens of the benchmark, and states in their order."""
    tokens, states, _, standing = bench.problem(heads, count, count, (0,) * requests)
    return tokens, states[standing.slots]


def exact(tokens: Tokens, states: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Output and state of the first request, token by token in float64."""
    q, k, v, log_decay, beta = (np.asarray(x[0], np.float64) for x in jax.tree.leaves(tokens))
    state, outputs = np.asarray(states[0], np.float64), []
    for t in range(len(q)):
        state = state * np.exp(log_decay[t])[..., None]
        delta = beta[t][:, None] * (v[t] - np.einsum("nk,nkv->nv", k[t], state))
        state = state + k[t][..., None] * delta[:, None, :]
        outputs.append(np.einsum("nk,nkv->nv", q[t], state))
    return np.stack(outputs)[None], state[None]


def recurrent(tokens: Tokens, states: jax.Array) -> Run:
    """The token-by-token Triton kernel of flash-linear-attention."""
    step = module("fla.ops.kda").fused_recurrent_kda
    inputs, form = _inputs(tokens), {"scale": 1.0, "output_final_state": True}
    initial = tensor(states)
    return lambda: step(*inputs, initial_state=initial, **form)


def chunked(tokens: Tokens, states: jax.Array) -> Run:
    """The chunked Triton kernels of flash-linear-attention, whose operands are bf16."""
    torch = module("torch")
    step = module("fla.ops.kda").chunk_kda
    q, k, v, log_decay, beta = _inputs(tokens)
    q, k, v, beta = (x.to(torch.bfloat16) for x in (q, k, v, beta))
    initial, form = tensor(states), {"scale": 1.0, "output_final_state": True}

    def run() -> object:
        with torch.inference_mode():
            return step(q, k, v, log_decay, beta, initial_state=initial, **form)

    return run


def compiled(tokens: Tokens, states: jax.Array) -> Run:
    """The equations of the reference, token by token, through torch.compile."""
    torch = module("torch")
    inputs, initial = _inputs(tokens), tensor(states)

    @torch.compile(dynamic=False)
    def steps(q, k, v, log_decay, beta, state):  # pyright: ignore  # tensors of a library that is not here
        outputs = []
        for t in range(q.shape[1]):
            state = state * log_decay[:, t].exp()[..., None]
            delta = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, :, None] * state).sum(-2))
            state = state + k[:, t, :, :, None] * delta[..., None, :]
            outputs.append((q[:, t, :, :, None] * state).sum(-2))
        return torch.stack(outputs, dim=1), state

    return lambda: steps(*inputs, initial)


def _inputs(tokens: Tokens) -> tuple[Any, ...]:
    return tuple(tensor(x) for x in (tokens.q, tokens.k, tokens.v, tokens.log_decay, tokens.beta))
