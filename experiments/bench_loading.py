"""What reading one rank's weights from a folder costs in memory and time.

    python -m experiments.bench_loading [--gib N] [--json]

For three families a folder of N GiB (bf16, random, removed afterwards) is written in the names of its checkpoints, and
a process of its own for each layout over 8 ranks reads what rank 0 holds, weight by weight as `place` does, and keeps
it. `allocated` is the peak of what the process allocated meanwhile (tracemalloc, which sees numpy's arrays), over the
bytes of the rank's share; `resident` is the growth of its resident set at its peak, pages of the mapped file included,
over the same.

Expected: allocated 1.0 and resident at most 1.2 of the share everywhere. Takes half a minute at the default 2 GiB.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

from layouts.checkpoint import architecture_of, open_folder, views
from layouts.checkpoint.place import read_part
from layouts.checkpoint.views import View
from layouts.decoder import weights
from layouts.mesh import axes_of, mesh_of
from layouts.models import load_model
from layouts.text import parse

RANKS: Final = 8
_MOE_LAYOUTS: Final = ("attn_dp=8,ep=8", "attn_tp=8,ep=8", "attn_tp=8,expert_tp=8")
LAYOUTS: Final = {
    "dense": ("attn_dp=8", "attn_tp=8"),
    "experts apart": _MOE_LAYOUTS,
    "experts together": _MOE_LAYOUTS,
}
_GIB: Final = 1 << 30
_HIDDEN, _HEADS, _DIM, _INNER, _EXPERTS, _VOCAB = 2048, 16, 128, 768, 32, 32_000
_COMMON: Final = {
    "hidden_size": _HIDDEN,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 4,
    "head_dim": _DIM,
    "vocab_size": _VOCAB,
    "max_position_embeddings": 4096,
    "intermediate_size": 4 * _HIDDEN,
    "num_experts_per_tok": 4,
}
# family -> its keys of a config.json
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "dense": {"architectures": ["LlamaForCausalLM"]},
    "experts apart": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": _EXPERTS,
        "moe_intermediate_size": _INNER,
    },
    "experts together": {
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": _EXPERTS,
        "intermediate_size": _INNER,
        "sliding_window": 128,
        "attention_bias": True,
    },
}


@dataclass(frozen=True)
class Reading:
    """One rank's load. Bytes, seconds; the peaks over `share`."""

    family: str
    layout: str
    share: int
    seconds: float
    allocated: float
    resident: float


def tensors_of(family: str, layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a checkpoint of the family."""
    yield from (("model.embed_tokens.weight", (_VOCAB, _HIDDEN)), ("lm_head.weight", (_VOCAB, _HIDDEN)))
    yield "model.norm.weight", (_HIDDEN,)
    for i in range(layers):
        for name, shape in (*_attention(family), *_ffn(family)):
            yield f"model.layers.{i}.{name}", shape


def _attention(family: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, pair = _HEADS * _DIM, 4 * _DIM
    yield from ((f"{norm}_layernorm.weight", (_HIDDEN,)) for norm in ("input", "post_attention"))
    for name, out, inp in (("q", query, _HIDDEN), ("k", pair, _HIDDEN), ("v", pair, _HIDDEN), ("o", _HIDDEN, query)):
        yield f"self_attn.{name}_proj.weight", (out, inp)
        if family == "experts together":
            yield f"self_attn.{name}_proj.bias", (out,)
    if family == "experts together":
        yield "self_attn.sinks", (_HEADS,)
    if family == "experts apart":
        yield from ((f"self_attn.{name}_norm.weight", (_DIM,)) for name in "qk")


def _ffn(family: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    if family == "dense":
        yield from _gated("mlp.", 4 * _HIDDEN)
    elif family == "experts apart":
        yield "mlp.gate.weight", (_EXPERTS, _HIDDEN)
        for expert in range(_EXPERTS):
            yield from _gated(f"mlp.experts.{expert}.", _INNER)
    else:
        yield from (("mlp.router.weight", (_EXPERTS, _HIDDEN)), ("mlp.router.bias", (_EXPERTS,)))
        yield "mlp.experts.gate_up_proj", (_EXPERTS, _HIDDEN, 2 * _INNER)
        yield "mlp.experts.gate_up_proj_bias", (_EXPERTS, 2 * _INNER)
        yield "mlp.experts.down_proj", (_EXPERTS, _INNER, _HIDDEN)
        yield "mlp.experts.down_proj_bias", (_EXPERTS, _HIDDEN)


def _gated(module: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{module}{name}_proj.weight", (width, _HIDDEN)) for name in ("gate", "up"))
    yield f"{module}down_proj.weight", (_HIDDEN, width)


def write_folder(folder: pathlib.Path, family: str, size: int) -> None:
    """A checkpoint of about `size` bytes."""
    around, layer = (sum(2 * int(np.prod(s)) for _, s in tensors_of(family, n)) for n in (0, 1))
    layers = max(1, (size - around) // (layer - around))
    kinds = (["sliding_attention", "full_attention"] * layers)[:layers]
    config = _COMMON | FAMILIES[family] | {"num_hidden_layers": layers, "layer_types": kinds}
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors_of(family, layers):
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    block = np.random.default_rng(0).bytes(1 << 24)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(block)):
            file.write(block[: end - at])


def read_rank(path: str, family: str, text: str) -> Reading:
    """Read and keep what rank 0 of the layout holds."""
    model, folder = load_model(path), open_folder(path)
    layout = parse(text, RANKS, model)
    mesh, axes = mesh_of(layout), axes_of(layout)
    made = views(model, folder, architecture_of(folder), attn_tp=layout.attn_tp, vocab_tp=layout.vocab_tp)
    specs = weights.model_specs(model, axes)
    specs["layers"] = [weights.layer_specs(layer, layout, axes, False) for layer in model.layers]

    def part(view: View, spec: Any) -> np.ndarray:
        index = NamedSharding(mesh, spec).devices_indices_map(view.shape)[mesh.devices.flat[0]]
        return read_part(view, index or (), view.dtype)

    before = _resident()
    tracemalloc.start()
    started = time.perf_counter()
    held = jax.tree.map(part, made, specs, is_leaf=lambda node: isinstance(node, View))
    seconds = time.perf_counter() - started
    share = sum(array.nbytes for array in jax.tree.leaves(held))
    allocated = tracemalloc.get_traced_memory()[1]
    return Reading(family, text, share, seconds, allocated / share, (_resident() - before) / share)


def _resident() -> int:
    """Bytes of the largest resident set of this process so far (Linux)."""
    line = next(at for at in pathlib.Path("/proc/self/status").read_text().splitlines() if at.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def measure(size: int) -> Iterator[Reading]:
    """Every family under every layout, one process each."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            write_folder(pathlib.Path(name), family, size)
            for layout in LAYOUTS[family]:
                command = [sys.executable, "-m", "experiments.bench_loading", "--rank", name, family, layout]
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                yield Reading(**json.loads(done.stdout))


def main() -> None:
    """The table, or one reading of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(asdict(read_rank(*options.rank))))
        return
    readings = list(measure(int(options.gib * _GIB)))
    if options.json:
        print(json.dumps([asdict(reading) for reading in readings], indent=1))
        return
    table = Table("family", "layout", "share GiB", "s", "allocated / share", "resident / share")
    for r in readings:
        peaks = (f"{r.allocated:.2f}", f"{r.resident:.2f}")
        table.add_row(r.family, r.layout, f"{r.share / _GIB:.2f}", f"{r.seconds:.2f}", *peaks)
    Console().print(table)


if __name__ == "__main__":
    main()
