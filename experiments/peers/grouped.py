"""Routed experts of a rank by others, at shapes of `experiments/bench_grouped_gemm.py`: both products, the activation
and the weighted sum. Choices are sorted by expert beforehand, which ours is not spared.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import bench_grouped_gemm as bench
from experiments.peers.case import Case
from experiments.peers.installed import file_of, module
from experiments.peers.timing import Run, tensor, torch_seconds
from layouts.moe.grouped import NOWHERE
from layouts.moe.reference import Experts

_HELD = 32
_CHECKED = 4  # tokens
_FORMATS = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant")
_FILE = "sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py"
# rows, columns and inputs of a block, warps, stages: sizes of the engine's tuned tables; the fastest is taken
CUTS: Final = ((16, 64, 128, 4, 4), (16, 128, 128, 4, 3), (32, 128, 64, 4, 4), (64, 128, 64, 4, 4))


class Rank(NamedTuple):
    """Rows `[tokens, width]`, the local expert of each choice `[tokens, topk]` or NOWHERE, its weight; w13 and w2."""

    x: jax.Array
    local: np.ndarray
    weights: jax.Array
    experts: Experts


def cases(count: int) -> Iterator[Case]:
    """A rank that holds 32 experts: the first `count` numbers of tokens."""
    peers = {"torch grouped_mm": torch_grouped, "SGLang Triton": sglang, "torch.compile": compiled}
    for layer, tokens in [case for case in bench.TIMED if case[0].held == _HELD][:count]:
        shape = {**layer._asdict(), "tokens": tokens}
        yield Case("grouped_gemm", shape, partial(inputs, layer, tokens), first, peers)


def inputs(layer: Any, tokens: int) -> tuple[Rank]:
    """Those of the benchmark, in bf16."""
    x, local, experts = bench.problem(layer, tokens, "bf16", holes=False)
    return (Rank(x, np.array(local), jax.random.uniform(jax.random.key(1), local.shape), experts),)


def first(rank: Rank) -> list[np.ndarray]:
    """Output of the first tokens in float64."""
    local = rank.local[:_CHECKED]
    here = np.unique(local[local != NOWHERE])
    few = Experts(rank.experts.w13[here], rank.experts.w2[here])
    number = np.where(local == NOWHERE, NOWHERE, np.searchsorted(here, local))
    parts = bench.exact(rank.x[:_CHECKED], jnp.asarray(number), few)
    token, choice = np.nonzero(local != NOWHERE)
    output = np.zeros((_CHECKED, parts.shape[1]))
    np.add.at(output, token, parts * np.asarray(rank.weights, np.float64)[token, choice, None])
    return [output]


def torch_grouped(rank: Rank) -> Run:
    """PyTorch's grouped products over rows that are copied to their experts."""
    torch = module("torch")
    x, weights, w13, w2 = _tensors(rank)
    flat, topk = rank.local.reshape(-1), rank.local.shape[1]
    chosen = np.argsort(flat, kind="stable")[np.count_nonzero(flat == NOWHERE) :]
    choice = torch.as_tensor(chosen, device=x.device)
    ends = torch.as_tensor(np.cumsum(_sizes(flat, len(w13))), dtype=torch.int32, device=x.device)
    arguments = (x, weights.reshape(-1)[choice, None], w13, w2, choice // topk, ends)
    return lambda: [_experts(torch, *arguments)]


def compiled(rank: Rank) -> Run:
    """The same through torch.compile, which fuses what is between the products."""
    run = module("torch").compile(torch_grouped(rank), dynamic=False)
    return run


def sglang(rank: Rank) -> Run:
    """SGLang's Triton kernels of the routed experts, at the best of `CUTS`."""
    library = file_of("sglang", _FILE, _STAND_INS)
    return min((_sglang(library, rank, cut) for cut in CUTS), key=lambda run: torch_seconds(run)[0])


def _experts(torch: Any, x: Any, weights: Any, w13: Any, w2: Any, token: Any, ends: Any) -> Any:
    products = torch.nn.functional.grouped_mm
    gate, up = products(x[token], w13.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    outputs = products(torch.nn.functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)
    summed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return summed.index_add_(0, token, outputs.float() * weights).to(x.dtype)


def _tensors(rank: Rank) -> tuple[Any, Any, Any, Any]:
    """x, weights, w13 with gate and up as one, w2."""
    return tensor(rank.x), tensor(rank.weights), tensor(rank.experts.w13).flatten(1, 2), tensor(rank.experts.w2)


def _sizes(flat: np.ndarray, held: int) -> np.ndarray:
    return np.bincount(flat[flat != NOWHERE], minlength=held)


def _sglang(library: Any, rank: Rank, cut: tuple[int, ...]) -> Run:
    torch, triton = module("torch"), module("triton")
    x, weights, w13, w2 = _tensors(rank)
    where, (tokens, topk) = {"dtype": torch.int32, "device": x.device}, rank.local.shape
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
    config = dict(zip(names, cut, strict=True)) | {"GROUP_SIZE_M": 1}
    ids, blocks = (torch.as_tensor(part, **where) for part in _aligned(rank.local.reshape(-1), len(w13), cut[0]))
    local, count = torch.as_tensor(rank.local, **where), torch.as_tensor([len(ids)], **where)
    compute = {torch.bfloat16: triton.language.bfloat16, torch.float16: triton.language.float16}[x.dtype]
    both, inner, parts, out = (
        torch.empty(shape, dtype=x.dtype, device=x.device)
        for shape in ((tokens * topk, w13.shape[1]), (tokens * topk, w2.shape[2]), (tokens, topk, x.shape[1]), x.shape)
    )
    form = dict.fromkeys(
        ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant"), False
    )

    def product(rows: Any, w: Any, to: Any, weigh: bool, choices: int) -> None:
        library.invoke_fused_moe_kernel(
            rows,
            w,
            None,
            to,
            None,
            None,
            None,
            weights,
            local,
            ids,
            blocks,
            count,
            weigh,
            choices,
            config,
            compute,
            **form,
        )

    def run() -> list[object]:
        product(x, w13, both, False, topk)
        library.act_and_mul_triton(both, inner, config, local, blocks)
        product(inner, w2, parts, True, 1)
        library.moe_sum_reduce_triton(parts, out, 1.0)
        return [out]

    return run


def _aligned(flat: np.ndarray, held: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Choices by expert, those of none last, each expert's filled up to whole blocks; and the expert of each block."""
    groups = [np.flatnonzero(flat == expert) for expert in (*range(held), NOWHERE)]
    filled = [np.pad(group, (0, -len(group) % rows), constant_values=len(flat)) for group in groups]
    experts = np.repeat([*range(held), NOWHERE], [len(group) // rows for group in filled])
    return np.concatenate(filled), experts


def _no(*_: object) -> bool:
    return False


_STAND_INS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": _no},
    "sglang.srt.layers.quantization.fp8_kernel": dict.fromkeys(
        ("per_token_group_quant_fp8", "scaled_fp8_quant", "sglang_per_token_group_quant_fp8")
    ),
    "sglang.srt.layers.quantization.int8_kernel": dict.fromkeys(
        ("per_token_group_quant_int8", "per_token_quant_int8", "sglang_per_token_group_quant_int8")
    ),
    "sglang.srt.utils": {
        "is_cuda": lambda: True,
        **dict.fromkeys(("cpu_has_amx_support", "get_bool_env_var", "is_cpu", "is_hip", "is_sm90_supported"), _no),
    },
}
