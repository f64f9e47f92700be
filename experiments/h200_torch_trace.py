"""A trace of PyTorch's profiler with what an engine's has in it: kernels, copies between GPUs on a stream of their own.

    python -m experiments.h200_torch_trace DIR    on a machine with two GPUs and PyTorch: writes DIR/torch_trace.json.gz

Three steps of eight layers. A layer is two matrix products; seven copies from the other GPU run beside it on a side
stream, as a weight gather does, and the next layer waits for them. What was asked for is written beside the trace, so
that a reader can be held to it. Seconds to run; the stored file is test data of `meshwright trace`.
"""

import argparse
import gzip
import json
import pathlib
import sys

from experiments.measured import errors_in_one_line, need_gpus
from experiments.peers.installed import module

STEPS, LAYERS, COPIES, MIB = 3, 8, 7, 2**20


def main() -> int:
    """Record, and write trace and facts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR", help="where the trace is written")
    folder = parser.parse_args().folder
    with errors_in_one_line():
        need_gpus(2, module("torch").cuda.device_count())
    record(folder)
    return 0


def record(folder: pathlib.Path) -> None:
    """A trace, and beside it what was asked for."""
    import torch  # pyright: ignore[reportMissingImports]  # only here: the project itself does without
    from torch.profiler import ProfilerActivity, profile, record_function  # pyright: ignore[reportMissingImports]

    parts = [torch.ones(8 * MIB, dtype=torch.uint8, device="cuda:1") for _ in range(COPIES)]
    staged = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda:0") for _ in range(COPIES)]
    rows, up, down = (
        torch.randn(shape, dtype=torch.bfloat16, device="cuda:0") for shape in ((64, 4096), (4096, 8192), (8192, 4096))
    )
    side = torch.cuda.Stream("cuda:0")

    def step() -> None:
        hidden = rows
        for layer in range(LAYERS):
            with record_function(f"layer_{layer}"):
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for target, source in zip(staged, parts, strict=True):
                        target.copy_(source, non_blocking=True)
                hidden = torch.relu(hidden @ up) @ down
                torch.cuda.current_stream().wait_stream(side)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for i in range(STEPS):
            with record_function(f"step_{i}"):
                step()
            torch.cuda.synchronize()
    path = folder / "torch_trace.json"
    recorded.export_chrome_trace(str(path))
    kept = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "user_annotation"}
    document = json.loads(path.read_text(encoding="utf-8"))
    document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") in kept or e.get("ph") == "M"]
    path.unlink()
    with gzip.open(folder / "torch_trace.json.gz", "wt", encoding="utf-8") as out:
        json.dump(document, out)
    asked = {
        "steps": STEPS,
        "layers": LAYERS,
        "copies_a_layer": COPIES,
        "bytes_a_copy": 8 * MIB,
        "torch": torch.__version__,
    }
    (folder / "torch_trace.facts.json").write_text(json.dumps(asked) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
