"""SGLang's Triton attention of one new token a request, out of the file that it is in."""

from typing import Any

import jax

from experiments.peers.installed import file_of, module
from experiments.peers.timing import Run, tensor

_FILE = "sglang/srt/layers/attention/triton_ops/decode_attention.py"
_SPLITS = 8  # the engine's default, triton_attention_num_kv_splits


def decode(query: jax.Array, keys: Any, values: Any, rows: jax.Array, scale: float) -> Run:
    """A call that attends from `query[requests, heads, dim]` to rows `[requests, tokens]` of pools, tensors
    `[rows, kv_heads, dim]`, and returns `[requests, heads, value dim]`."""
    torch = module("torch")
    library = file_of("sglang", _FILE, {"sglang.srt.utils": {"is_hip": lambda: False}})
    requests, heads, _ = query.shape
    q = tensor(query)
    where = {"device": q.device}
    ends = torch.arange(requests + 1, dtype=torch.int32, **where) * rows.shape[1]
    index = tensor(rows).reshape(-1).to(torch.int64)
    parts = torch.empty((requests, heads, _SPLITS, values.shape[-1]), dtype=torch.float32, **where)
    lse = torch.empty((requests, heads, _SPLITS), dtype=torch.float32, **where)
    splits = torch.full((requests,), _SPLITS, dtype=torch.int32, **where)
    out = torch.empty((requests, heads, values.shape[-1]), dtype=q.dtype, **where)
    scales = {"sm_scale": scale, "k_scale": 1.0, "v_scale": 1.0}

    def run() -> object:
        library.decode_attention_fwd(q, keys, values, out, ends, index, parts, lse, splits, _SPLITS, **scales)
        return out

    return run
