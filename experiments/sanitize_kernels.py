"""Every kernel on small ragged inputs under compute-sanitizer: what is out of bounds, unset, raced for or out of step.

    python -m experiments.sanitize_kernels --measure FILE   with a GPU and compute-sanitizer: run, write FILE
    python -m experiments.sanitize_kernels [FILE]           anywhere: what was found

Requests of no token, experts that nobody chose and the padding slot are among the inputs; pages are in random order.
That results are right is held by the benches: here they are computed and dropped. memcheck finds accesses out of
bounds, initcheck reads of device memory that nothing wrote, racecheck races in shared memory, synccheck barriers that
not all threads reach. Each tool on each kernel is a process, all side by side; takes a minute, and longer where one
hangs.

A tool knows allocations, not arrays. So that an array is one, JAX's pool of memory is off (`ALONE`), and memcheck puts
a gap behind each, or the next one would take what is read beyond the end. Arguments and results are apart then; what a
program keeps between its kernels still lies in one allocation of XLA's.

Nothing was found in the stored results. They are of two runs, as `notes` say, which were added by hand: of the four
processes with the experts' products one or two hung at random, in the compiler as it seems, which was left to choose by
timing then (`UNTIMED`).
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments import bench_grouped_gemm, bench_mla_decode, bench_paged_attention
from experiments.measured import draw, here, keep, measure_or_show, stored
from hw.errors import MeshwrightError
from layouts.dense.activation import SwiGLU
from layouts.kda import verify as kda
from layouts.kda.chunked import Writes
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from layouts.mla import attend as mla
from layouts.moe.grouped import grouped
from layouts.paged import attend as paged

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "sanitizer.json"
SANITIZER: Final = "compute-sanitizer"
TOOLS: Final = ("memcheck", "initcheck", "racecheck", "synccheck")
# Of JAX: every array is allocated as it is needed, as long as it is, and freed (docs.jax.dev, GPU memory allocation).
# Its pool, which PREALLOCATE=false leaves on, takes 2 MiB and more at a time.
ALONE: Final = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
# XLA's compiler times what it may choose from with a kernel that waits for the host; with others on the device both can
# wait for each other until it gives up (openxla/xla#41399), and what a tool watches is slow. Nothing is chosen here.
UNTIMED: Final = "--xla_gpu_autotune_level=0"
GAP: Final = 1 << 20  # bytes behind an allocation, more than the largest tile of a kernel
SECONDS: Final = 80  # after which a process is given up
PATIENCE: Final = 5  # and after which one that does not end for that is killed
KEPT_LINES: Final = 12  # of a report
# "ERROR SUMMARY: 0 errors"; "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"
SUMMARY: Final = re.compile(r"SUMMARY: (\d+) (?:error|hazard)")


def run_mla() -> None:
    """Latent attention on Hopper, of few and many rows: bf16, runs of 16 tokens, fp8."""
    for verify, heads, lengths, run, dtype in (
        (1, 64, (130, 0, 1), 64, "bfloat16"),
        (5, 16, (384, 131, 5), 16, "bfloat16"),
        (2, 16, (200, 0, 70, 1), 64, "float8_e4m3fn"),
    ):
        inputs = bench_mla_decode.problem(verify, heads, lengths, holes=True, run=run, dtype=dtype)
        attend = functools.partial(mla.attend_pages, scale=0.1, latent=512, form="mosaic_gpu", run=run)
        jax.block_until_ready(jax.jit(attend)(*inputs))


def run_paged() -> None:
    """Attention over pages: the ragged cases of its bench."""
    for case in bench_paged_attention.RAGGED:
        query, pool, pages, sinks = bench_paged_attention.problem(case)
        attend = functools.partial(
            paged.attend_pages, entry=case.entry, scale=0.1, run=case.run, form="triton", sinks=sinks
        )
        jax.block_until_ready(jax.jit(attend)(query, pool, pages))


def run_grouped() -> None:
    """The experts' products: weights in bf16 and in blocks of fp8."""
    layer = bench_grouped_gemm.Layer(12, 4, 512, 256, 8)
    run = jax.jit(functools.partial(grouped, activation=SwiGLU(), with_bias=jnp.bool_(True), form="triton"))
    for form in ("bf16", "fp8"):
        jax.block_until_ready(run(*bench_grouped_gemm.problem(layer, 100, form, holes=True)))


def run_kda(form: str) -> None:
    """A step of three requests: one with accepted tokens, one that begins, and a padding row."""
    random, heads, dim, tokens, slots = np.random.default_rng(0), 2, 128, 3, 5

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(random.uniform(0.1, 0.9, shape), jnp.float32)

    step = (3, tokens, heads, dim)
    new = Tokens(drawn(*step), drawn(*step), drawn(*step), -drawn(*step), drawn(*step[:-1]))
    kept = Writes(*(drawn(slots, tokens, heads, dim) for _ in range(3)))
    standing = Standing(
        jnp.array([2, 4, 0], jnp.int32), jnp.array([2, 1, 0], jnp.int32), jnp.array([False, True, False])
    )
    jax.block_until_ready(jax.jit(kda.FORMS[form])(new, drawn(slots, heads, dim, dim), kept, standing))


KERNELS: Final[Mapping[str, Callable[[], None]]] = {
    "mla": run_mla, "paged": run_paged, "grouped_gemm": run_grouped,
    "kda": functools.partial(run_kda, "triton"), "kda_hopper": functools.partial(run_kda, "mosaic_gpu"),
}  # fmt: skip


class NoSanitizerError(MeshwrightError):
    """compute-sanitizer is not on this machine."""


def sanitized(tool: str, kernel: str) -> dict[str, Any]:
    """What a tool finds in a kernel: the number of its errors (None if it did not end), and its first words on them.
    Raises NoSanitizerError."""
    run = f"from experiments.sanitize_kernels import KERNELS; KERNELS[{kernel!r}]()"
    gap = ["--padding", str(GAP)] if tool == "memcheck" else []
    command = [sanitizer(), "--tool", tool, *gap, "--print-limit", "5", sys.executable, "-c", run]
    untimed = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {UNTIMED}".strip()}
    started = time.perf_counter()
    ended = subprocess.run(
        ["timeout", f"--kill-after={PATIENCE}", str(SECONDS), *command],
        capture_output=True, text=True, check=False, env={**os.environ, **ALONE, **untimed},
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    counts = SUMMARY.findall(text)
    errors = int(counts[-1]) if counts and ended.returncode == 0 else None
    lines = [] if errors == 0 else text.splitlines()[-KEPT_LINES:] if errors is None else _report(text)
    return {"tool": tool, "kernel": kernel, "errors": errors, "seconds": time.perf_counter() - started, "lines": lines}


def sanitizer() -> str:
    """The tool's path. Raises NoSanitizerError."""
    found = shutil.which(SANITIZER) or next(map(str, pathlib.Path("/usr/local").glob(f"cuda*/bin/{SANITIZER}")), None)
    if found is None:
        raise NoSanitizerError(f"{SANITIZER} is not on the PATH or in /usr/local/cuda*: install the CUDA toolkit")
    return found


def _report(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("=====")][1 : 1 + KEPT_LINES]


def measure(path: pathlib.Path) -> None:
    """Run all tools on all kernels, and keep what each found as it ends."""
    sanitizer()  # where it is missing, that is said once
    pairs = [(tool, kernel) for tool in TOOLS for kernel in KERNELS]
    with ThreadPoolExecutor(len(pairs)) as pool:
        running: list[Future[dict[str, Any]]] = [pool.submit(sanitized, *pair) for pair in pairs]
        found = (("found", done.result()) for done in as_completed(running))
        keep(path, {**here(), "memory": ALONE, "gap_bytes": GAP}, found)


def show(path: pathlib.Path) -> None:
    """Errors by kernel and tool."""
    from rich.table import Table

    document = stored(path)
    errors = {(row["kernel"], row["tool"]): row["errors"] for row in document["found"]}
    table = Table("kernel", *TOOLS, title=f"errors: {document['device']}, jax {document['jax']}")
    for kernel in KERNELS:
        found = [errors.get((kernel, tool), "-") for tool in TOOLS]
        table.add_row(kernel, *("did not end" if count is None else str(count) for count in found))
    draw(document, table)


if __name__ == "__main__":
    os.environ.update(ALONE)  # of this process too: a pool would take most of what the others need
    measure_or_show(__doc__ or "", RESULTS, measure, show)
