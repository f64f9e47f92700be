"""A decode step as one launch: what the GPU idles between kernels, with and without graphs, and what the host takes.

    python -m experiments.bench_step_gaps --measure FILE     on a machine with GPUs: compile, time, record, write FILE
    python -m experiments.bench_step_gaps [FILE]             anywhere: what was measured

Slices of models at full width, the programs that `meshwright run` compiles. "ours" are its options
(`layouts/decoder/options.toml`), which leave XLA's own list of what goes into CUDA graphs: all but exchanges. "one
graph" has those in it, too, "launches" has no graphs. Each is timed with a wait behind every step (synced) and with
steps in flight, and recorded by the profiler: idle is the part of the time in which nothing runs on the first GPU.

Caches are donated: a step must leave the pools where they are, so bytes that alias are those of the caches.

Expected on H200s: 1 to 2 % idle with steps in flight, in graphs or without; a wait behind every step costs 0.4 to 0.9
ms, 1.2 with exchanges in the graph. Takes three minutes. The stored results are those of another slice (`notes`, added
by hand, say which).
"""

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Final

import jax
import numpy as np

from experiments.h200_layouts.build import Built, build
from experiments.h200_layouts.points import Shape, Slice
from experiments.measured import draw, here, keep, measure_or_show, stored
from explorer.traces.events import Events
from explorer.traces.intervals import covered, union
from explorer.traces.reading import read_trace
from hw.measuring.flight import times
from layouts.decoder.options import Options, compiler_options

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "step_gaps.json"
RECORDED: Final = 6  # steps, of which the first and the last are not looked at
# of the profiler: without it graphs are taken apart while it runs
SEEN: Final = {"xla_enable_command_buffers_during_profiling": True}
SHAPES: Final = (
    Shape(Slice("deepseek-v3", 5, 32), "attn_dp=1", 1, 32, 1, (4096,)),
    Shape(Slice("deepseek-v3", 5, 32), "attn_dp=2,ep=2", 2, 64, 1, (4096,)),
    Shape(Slice("kimi-k3", 4, 32), "attn_dp=1", 1, 32, 1, (4096,)),
)
GRAPHS: Final = "xla_gpu_enable_command_buffer"
ALL: Final = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,DYNAMIC_SLICE_FUSION,COLLECTIVES"


def variants() -> dict[str, Options]:
    """Compiler options by name."""
    ours = dict(compiler_options("gpu"))
    return {"ours": ours, "one graph": ours | {GRAPHS: ALL}, "launches": ours | {GRAPHS: ""}}


def rows(shape: Shape) -> Iterator[dict[str, Any]]:
    """One shape under every variant, all of them compiled at once."""
    built = build(shape, jax.devices())
    with ThreadPoolExecutor() as pool:
        made = {name: pool.submit(_compiled, built, options) for name, options in variants().items()}
        held = built.weights()
    for name, executable in made.items():
        about = {"shape": shape.key, "layers": shape.slice.layers, "variant": name}
        yield {**about, **timed(built, executable.result(), held)}


def _compiled(built: Built, options: Options) -> Any:
    stage = replace(built.stage, options=dict(options) | SEEN)
    return replace(built, stage=stage).lowered().compile()


def timed(built: Built, executable: Any, held: Any) -> dict[str, Any]:
    """Seconds of a step, idle time, and whether the pools stay where they are."""
    entering, step = built.placed(built.shape.longest)

    def run(caches: Any) -> tuple[Any, Any]:
        stepped = executable(held, entering, caches, step)
        return stepped.leaving, stepped.caches

    caches = built.caches()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(caches)) // built.shape.gpus
    found, caches = times(run, caches)
    memory = executable.memory_analysis()
    seen = recorded(run, caches)
    in_place = memory.alias_size_in_bytes >= size
    return {**asdict(found), **seen, "in_place": in_place, "temporary_bytes": memory.temp_size_in_bytes}


def recorded(run: Callable[[Any], tuple[Any, Any]], caches: Any) -> dict[str, Any]:
    """Some steps in flight as the profiler sees them."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(RECORDED):
                _, caches = run(caches)
            jax.block_until_ready(caches)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        events = read_trace(path).events
    return gaps(events.take(events.device == events.device.min()))


def gaps(events: Events) -> dict[str, Any]:
    """Of steps in flight, those in the middle: kernels of a step, and idle time between them."""
    start, end = int(events.start.min()), int(events.end.max())
    margin = (end - start) // RECORDED
    inner = events.within(start + margin, end - margin)
    length = end - start - 2 * margin
    starts, ends = union(inner.start, inner.end)
    between = starts[1:] - ends[:-1]
    return {
        "kernels": len(events) / RECORDED,
        "idle": 1 - covered(inner.start, inner.end) / length,
        "gap_ns": float(np.median(between)) if len(between) else 0.0,
        "gaps": len(between) / (RECORDED - 2),
    }


def measure(path: pathlib.Path) -> None:
    """Time all shapes that there are GPUs for, and keep what is done after each row."""
    there_are = len(jax.devices())
    keep(path, here(), (("rows", row) for shape in SHAPES if shape.gpus <= there_are for row in rows(shape)))


def show(path: pathlib.Path) -> None:
    """Every row, and the notes."""
    from rich.table import Table

    document = stored(path)
    title = f"Decode steps: {document['device']}, jax {document['jax']}"
    columns = ("in flight ms", "synced ms", "host ms", "kernels", "idle", "gap us", "in place")
    table = Table("model", "GPUs", "layout", "variant", *columns, title=title)
    for row in document["rows"]:
        model, gpus, layout, *_ = row["shape"].split("|")
        milliseconds = (f"{1e3 * row[key]:.3f}" for key in ("flight", "synced", "host"))
        table.add_row(
            model, gpus, layout, row["variant"], *milliseconds, f"{row['kernels']:.0f}", f"{row['idle']:.1%}",
            f"{row['gap_ns'] / 1e3:.1f}", "yes" if row["in_place"] else "no",
        )  # fmt: skip
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
