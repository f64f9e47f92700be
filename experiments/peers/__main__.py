"""Others' kernels of the ops that we wrote kernels for: checked and timed beside ours, and their published figures.

    python -m experiments.peers --measure FILE     on a machine with a GPU and PyTorch: ask each peer, write FILE
    python -m experiments.peers [FILE]             anywhere: ours, XLA's, each peer's and published figures

Peers: FlashMLA; Triton kernels of SGLang, in the files that they are in; flash-linear-attention's KDA; PyTorch's
grouped product, attention by cuDNN, FlashAttention 2 and flex attention; JAX's attention by cuDNN; plain lines through
torch.compile. Each gets the inputs of our benchmark in the same memory and must come within 2 % of its float64
reference for the first request; one that is not installed, refuses or is wrong is listed with the reason. Nothing of
the project needs any.

PyTorch's calls are timed by CUDA events around graph replays of 20 calls (medians of seven), so without launch gaps;
JAX's by wall time of 20 queued calls, as our benchmarks do. Ours and XLA's are read from the stored results of these.

Expected: seconds a shape once compiled; 80 s in all with cold caches, most of it torch.compile and autotuning.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from experiments.measured import measure_or_show
from experiments.peers.tables import STORED, show

RESULTS: Final = STORED / "peers.json"
SHAPES: Final = 3  # of each benchmark
PACKAGES: Final = ("jax", "torch", "triton", "fla-core", "sglang", "flash_mla", "nvidia-cudnn-cu13")


def measure(path: pathlib.Path) -> None:
    """Ask every peer for every shape, and keep what is done after each."""
    import jax

    from experiments.bench_mla_decode import copies
    from experiments.peers.case import asked
    from experiments.peers.installed import versions

    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"device": jax.devices()[0].device_kind, "versions": versions(PACKAGES)}
    document |= {"copy_bytes_per_s": copies(), "rows": []}
    for case in _cases():
        for peer in case.peers:
            document["rows"].append(asked(case, peer))
            print(json.dumps(document["rows"][-1]), flush=True)
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _cases() -> Iterator[Any]:
    from experiments.peers import mla

    ops: Mapping[str, Callable[[int], Iterator[Any]]] = {"mla": mla.cases}
    for cases in ops.values():
        yield from cases(SHAPES)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
