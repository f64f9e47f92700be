"""Grouped-query decode by others, at shapes of `experiments/bench_paged_attention.py`: full pages, no window.

All but SGLang's take a contiguous cache, so they look up no pages.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import bench_paged_attention as bench
from experiments.peers.case import Case
from experiments.peers.installed import module
from experiments.peers.timing import Run, tensor
from experiments.peers.triton_decode import decode
from hw.errors import MeshwrightError


class Problem(NamedTuple):
    """Queries `[requests, verify, heads, dim]`, a pool `[rows, kv_heads, 2 dim]` of keys and values, the rows of each
    request's tokens `[requests, tokens]`, how many each query sees `[requests, verify]`, and the scale."""

    query: jax.Array
    pool: jax.Array
    rows: jax.Array
    limits: jax.Array
    scale: float


def cases(count: int) -> Iterator[Case]:
    """The first `count` shapes of 16 or 32 requests that no cache holds."""
    peers = {
        "FlashAttention 3": flash_attention, "SGLang Triton": sglang,
        "torch cuDNN": partial(torch_fused, backend="CUDNN_ATTENTION"),
        "torch FlashAttention 2": partial(torch_fused, backend="FLASH_ATTENTION"),
        "jax cuDNN": jax_cudnn, "torch flex attention": flex,
    }  # fmt: skip
    loads = [(*of, *load) for of, several in bench.TIMED for load in several]
    chosen = [load for load in loads if load[2] == bench.PAIR and load[3] in (16, 32) and load[3] * load[5] >= 2**18]
    for heads, kv_heads, entry, requests, verify, tokens in chosen[:count]:
        shape = {"requests": requests, "verify": verify, "heads": heads, "kv_heads": kv_heads, "key": entry.key,
                 "tokens": tokens}  # fmt: skip
        yield Case("paged_attention", shape, partial(inputs, heads, kv_heads, requests, verify, tokens), first, peers)


def inputs(heads: int, kv_heads: int, requests: int, verify: int, tokens: int) -> tuple[Problem]:
    """Random queries and pool, runs of the benchmark's length in random order."""
    of_query, of_pool, of_runs = jax.random.split(jax.random.key(heads + verify), 3)
    query = jax.random.normal(of_query, (requests, verify, heads, bench.PAIR.key), jnp.bfloat16)
    pool = jax.random.normal(of_pool, (requests * tokens, kv_heads, 2 * bench.PAIR.key), jnp.bfloat16)
    runs = jax.random.permutation(of_runs, requests * tokens // bench.RUN).astype(jnp.int32) * bench.RUN
    rows = (runs[:, None] + jnp.arange(bench.RUN, dtype=jnp.int32)).reshape(requests, tokens)
    limits = jnp.broadcast_to(tokens - verify + 1 + jnp.arange(verify, dtype=jnp.int32), (requests, verify))
    return (Problem(query, pool, rows, limits, bench.SCALE),)


def first(problem: Problem) -> list[np.ndarray]:
    """Output in float64 of the first request's heads that share the first KV head."""
    group = problem.query.shape[2] // problem.pool.shape[1]
    query, pool = problem.query[:1, :, :group], problem.pool[problem.rows[0], :1]
    tokens = len(pool)
    case = bench.Case((tokens,), query.shape[1], group, 1, bench.PAIR)
    pages = bench.Pages(jnp.arange(0, tokens, bench.RUN)[None], problem.limits[:1])
    return [bench.exact(case, query, pool, pages, None)[0]]


def sglang(problem: Problem) -> Run:
    """SGLang's Triton decode over single tokens."""
    if problem.query.shape[1] != 1:
        raise MeshwrightError("decodes one token of a request; no verification")
    keys, values = tensor(problem.pool).chunk(2, dim=-1)
    run = decode(problem.query[:, 0], keys, values, problem.rows, problem.scale)
    return lambda: [run()[:, None]]


def flash_attention(problem: Problem) -> Run:
    """FlashAttention 3 over a contiguous cache, tokens before heads."""
    attend = module("flash_attn_interface").flash_attn_with_kvcache
    key, value = jnp.split(problem.pool[problem.rows], 2, axis=-1)
    q, k, v = (tensor(x) for x in (problem.query, key, value))
    form = {"cache_seqlens": tensor(problem.limits[:, -1]), "softmax_scale": problem.scale, "causal": q.shape[1] > 1}
    return lambda: [attend(q, k, v, **form)]


def torch_fused(problem: Problem, backend: str) -> Run:
    """PyTorch's attention by a backend, such as CUDNN_ATTENTION.

    Heads that share a KV head go as tokens of it where no mask tells tokens apart.
    """
    torch = module("torch")
    chosen = getattr(torch.nn.attention.SDPBackend, backend)
    q, k, v = _tensors(problem)
    requests, heads, verify, dim = q.shape
    form = {"attn_mask": tensor(_seen(problem))[:, None], "scale": problem.scale, "enable_gqa": True}
    if verify == 1:
        q = q.reshape(requests, k.shape[1], -1, dim)
        form = {"scale": problem.scale}

    def run() -> list[object]:
        with torch.nn.attention.sdpa_kernel(chosen):
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, **form)
        return [attended.reshape(requests, heads, verify, dim).transpose(1, 2)]

    return run


def flex(problem: Problem) -> Run:
    """PyTorch's flex attention through torch.compile: its split decode kernel."""
    torch, library = module("torch"), module("torch.nn.attention.flex_attention")
    q, k, v = _tensors(problem)
    limits = tensor(problem.limits)

    def seen(request: Any, head: Any, token: Any, place: Any) -> Any:
        return place < limits[request, token]

    shape = {"B": len(limits), "H": None, "Q_LEN": q.shape[2], "KV_LEN": k.shape[2], "device": q.device}
    form = {"scale": problem.scale, "enable_gqa": True}
    if q.shape[2] > 1:
        form["block_mask"] = library.create_block_mask(seen, **shape)
    attend = torch.compile(library.flex_attention, dynamic=False)
    return lambda: [attend(q, k, v, **form).transpose(1, 2)]


def jax_cudnn(problem: Problem) -> Run:
    """JAX's attention by cuDNN."""
    key, value = jnp.split(problem.pool[problem.rows], 2, axis=-1)
    mask = _seen(problem)[:, None] if problem.query.shape[1] > 1 else None
    form = {"mask": mask, "scale": problem.scale, "implementation": "cudnn"}
    run = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **form))
    return lambda: [run(problem.query, key, value)]


def _tensors(problem: Problem) -> tuple[Any, Any, Any]:
    """Queries, and contiguous keys and values, heads before tokens."""
    key, value = jnp.split(problem.pool[problem.rows], 2, axis=-1)
    q, k, v = (tensor(x).transpose(1, 2) for x in (problem.query, key, value))
    return q, k.contiguous(), v.contiguous()


def _seen(problem: Problem) -> jax.Array:
    return jnp.arange(problem.rows.shape[1]) < problem.limits[:, :, None]
