"""Others' kernels of the ops that we wrote kernels for: checked and timed beside ours, and their published figures.

    python -m experiments.peers --measure FILE     on a machine with a GPU and PyTorch: ask each peer, write FILE
    python -m experiments.peers [FILE]             anywhere: ours, XLA's, each peer's and published figures

Peers: FlashMLA and FlashAttention 3; Triton kernels of SGLang, in the files that they are in; flash-linear-attention's
KDA; PyTorch's grouped product, attention by cuDNN, FlashAttention 2 and flex attention; JAX's attention by cuDNN; plain
lines through torch.compile. Each gets inputs of our benchmark in the same memory and must come within 2 % of a float64
reference for the first request; one that is not installed, refuses or is wrong is listed with the reason. Nothing of
the project needs any.

PyTorch's calls are timed by CUDA events around graph replays of 20 calls (medians of seven), so without launch gaps;
JAX's by wall time of 20 queued calls, as our benchmarks do. Ours and XLA's are read from the stored results of these.

Expected on an H200, as parts of our time. MLA decode: FlashMLA 0.79 to 0.82, FlashAttention 3 0.85 to 0.96, SGLang's
Triton kernel 3.96 to 9.31; cuDNN refuses. Grouped-query decode of one token: FlashAttention 2 0.83, FlashAttention 3
0.78 to 0.85, JAX's cuDNN 0.92 to 1.35, SGLang's 1.25 to 4.12, PyTorch's cuDNN 1.28 to 3.98; of five: FlashAttention 3
0.54, cuDNN 11 times as long. KDA: flash-linear-attention 0.87 of a step of one token and 1.33 to 1.39 of five. Experts:
SGLang's 0.96, PyTorch's 1.46 to 1.53. Ours are of other H200s than the peers', whose copies are slower: by 2 % for MLA,
3 % for KDA and 9 % for grouped queries.
Takes two minutes with cold caches, most of it compiling; a run that ends early is gone on with. `notes` in the stored
results were added by hand.
"""

import datetime
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from experiments.measured import measure_or_show
from experiments.peers.tables import STORED, show

RESULTS: Final = STORED / "peers.json"
PACKAGES: Final = ("jax", "torch", "triton", "fla-core", "sglang", "flash_mla", "flash_attn_3", "nvidia-cudnn-cu13")
# of each op, and those that compile for seconds, at one shape
SHAPES: Final = 3
SLOW: Final = ("torch.compile", "torch flex attention", "flash-linear-attention, chunks")


def measure(path: pathlib.Path) -> None:
    """Ask every peer for every shape, and keep what is done after each; what FILE has of the same machine stays."""
    import jax

    from experiments.peers.case import asked
    from experiments.peers.installed import versions
    from hw.measuring.copies import bandwidths

    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"device": jax.devices()[0].device_kind, "versions": versions(PACKAGES)}
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(document.get(name) != value for name, value in head.items()):
        document = {**head, "copy_bytes_per_s": bandwidths(jax.devices()[0]), "rows": []}
    done = [(row["op"], row["shape"], row["peer"]) for row in document["rows"]]
    for slow in (False, True):
        for case in _cases(1 if slow else SHAPES):
            left = [p for p in case.peers if (p in SLOW) == slow and (case.op, case.shape, p) not in done]
            for row in asked(case, left):
                document["rows"].append({**row, "date": datetime.date.today().isoformat()})
                print(json.dumps(row), flush=True)
                path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _cases(count: int) -> Iterator[Any]:
    """The first shapes of one op after the other, each with its own imports: one that fails leaves those before it."""
    from experiments.peers import mla

    yield from mla.cases(count)
    from experiments.peers import kda

    yield from kda.cases(count)
    from experiments.peers import gqa

    yield from gqa.cases(count)
    from experiments.peers import grouped

    yield from grouped.cases(count)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
