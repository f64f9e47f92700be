"""MLA decode by others, at the shapes of `experiments/bench_mla_decode.py` and on its pages."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench_mla_decode import LATENT, SCALE, TIMED, WIDTH, exact
from experiments.peers.case import Case
from experiments.peers.installed import module
from experiments.peers.timing import Run, tensor
from experiments.peers.triton_decode import decode
from hw.errors import MeshwrightError
from layouts.mla.attend import RUN, Pages


def cases(count: int) -> Iterator[Case]:
    """The first `count` shapes of the benchmark."""
    peers = {
        "FlashMLA": flash_mla, "FlashAttention 3": flash_attention, "SGLang Triton": sglang, "torch cuDNN": cudnn,
        "jax cuDNN": jax_cudnn, "torch.compile": compiled,
    }  # fmt: skip
    for batch in TIMED[:count]:
        requests, tokens = len(batch.lengths), max(batch.lengths)
        shape = {"requests": requests, "verify": batch.verify, "heads": batch.heads, "tokens": tokens}
        yield Case("mla_decode", shape, batch.problem, _first, peers)


def flash_mla(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """FlashMLA's dense decode over pages of 64 tokens; its schedule is made once, as a step makes it for all layers."""
    library = module("flash_mla")
    q, latents = tensor(query), tensor(pool).view(-1, RUN, 1, WIDTH)
    table, lengths = tensor(pages.starts // RUN), tensor(pages.limits[:, -1])
    schedule, _ = library.get_mla_metadata()

    def run() -> list[object]:
        form = {"softmax_scale": SCALE, "causal": query.shape[1] > 1}
        return [library.flash_mla_with_kvcache(q, latents, table, lengths, LATENT, schedule, **form)[0]]

    return run


def flash_attention(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """FlashAttention 3 over the same pages: rotated parts as keys, latents as further keys and as values."""
    attend = module("flash_attn_interface").flash_attn_with_kvcache
    q, latents = tensor(query), tensor(pool).view(-1, RUN, 1, WIDTH)
    form = {"qv": q[..., :LATENT], "page_table": tensor(pages.starts // RUN), "softmax_scale": SCALE}
    form |= {"cache_seqlens": tensor(pages.limits[:, -1]), "causal": query.shape[1] > 1}
    return lambda: [attend(q[..., LATENT:], latents[..., LATENT:], latents[..., :LATENT], **form)]


def sglang(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """SGLang's Triton decode over single tokens."""
    if query.shape[1] != 1:
        raise MeshwrightError("decodes one token of a request; no verification")
    latents = tensor(pool)[:, None]
    run = decode(query[:, 0], latents, latents[..., :LATENT], _rows(pages), SCALE)
    return lambda: [run()[:, None]]


def compiled(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """The three lines of the reference through torch.compile, over a contiguous cache."""
    torch = module("torch")
    q, cache, seen = tensor(query), tensor(pool[_rows(pages)]), tensor(_seen(pages))

    @torch.compile(dynamic=False)
    def attend(q, cache, seen):  # pyright: ignore  # tensors of a library that is not here
        scores = torch.einsum("bqhk,btk->bqht", q, cache).float() * SCALE
        if q.shape[1] > 1:
            scores = scores.masked_fill(~seen[:, :, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1).to(q.dtype)
        return torch.einsum("bqht,btw->bqhw", weights, cache[..., :LATENT])

    return lambda: [attend(q, cache, seen)]


def cudnn(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """PyTorch's attention by cuDNN over a contiguous cache of one KV head."""
    torch = module("torch")
    q, cache = tensor(query).transpose(1, 2), tensor(pool[_rows(pages)])[:, None]
    mask = tensor(_seen(pages))[:, None] if query.shape[1] > 1 else None
    form = {"attn_mask": mask, "scale": SCALE, "enable_gqa": True}

    def run() -> list[object]:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            attended = torch.nn.functional.scaled_dot_product_attention(q, cache, cache[..., :LATENT], **form)
        return [attended.transpose(1, 2)]

    return run


def jax_cudnn(query: jax.Array, pool: jax.Array, pages: Pages) -> Run:
    """JAX's attention by cuDNN over a contiguous cache of one KV head."""
    cache = pool[_rows(pages)][:, :, None]
    mask = _seen(pages)[:, None] if query.shape[1] > 1 else None
    form = {"mask": mask, "scale": SCALE, "implementation": "cudnn"}
    run = jax.jit(lambda q, cache: jax.nn.dot_product_attention(q, cache, cache, **form)[..., :LATENT])
    return lambda: [run(query, cache)]


def _rows(pages: Pages) -> jax.Array:
    """Pool rows of each request's tokens, in order: `[requests, tokens]`."""
    rows = pages.starts[:, :, None] + jnp.arange(RUN, dtype=pages.starts.dtype)
    return rows.reshape(len(pages.starts), -1)[:, : int(pages.limits.max())]


def _seen(pages: Pages) -> jax.Array:
    return jnp.arange(int(pages.limits.max())) < pages.limits[:, :, None]


def _first(query: jax.Array, pool: jax.Array, pages: Pages) -> list[np.ndarray]:
    """The first request's output in float64."""
    own = pool[(pages.starts[0][:, None] + jnp.arange(RUN)).reshape(-1)]
    alone = Pages(jnp.arange(pages.starts.shape[1])[None] * RUN, pages.limits[:1])
    return [exact(query[:1], own, alone)[0]]
