"""What a GPU does in a decode step of ours, as its profiler sees it, taken apart like a trace of an engine.

    python -m experiments.h200_trace --measure DIR    on a machine with GPUs: record, write DIR/trace_*
    python -m experiments.h200_trace [DIR]            anywhere: the stored traces (results/h200), taken apart

A few verify steps of a decoder at tiny scale on all GPUs that are here, so that every kind of layer, an exchange and a
copy are in it while the file stays small. Three steps are kept: trace_MODEL_GPUS.json.gz for `meshwright trace` and
Perfetto, its analysis beside it, and JAX's own xplane.pb where that is small enough. On CPUs it runs too; there a
"stream" is a thread.

Expected: mostly idle GPUs, as tiny kernels take less time than XLA's launches of them. Half a minute a model, most of
it compiling.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import tempfile
from typing import Any, Final

import jax
import jax.numpy as jnp
from rich.console import Console

from explorer.report.trace import draw
from explorer.run_request import make_run_request
from explorer.traces.answer import answer
from explorer.traces.chrome import chrome_document, write_chrome
from explorer.traces.events import Trace
from explorer.traces.reading import read_trace
from explorer.traces.steps import STEP
from layouts.decoder.drawn import drawn
from layouts.decoder.program import Program
from layouts.generation import Capacity, Session

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200"
MODELS: Final = ("deepseek-v3", "llama-3.1-8b")
STEPS: Final = 5
KEPT: Final = 3
LARGEST: Final = 300_000  # bytes of an xplane.pb that is kept
_WIDTH: Final = 2  # rows verified a request and step


def session(model: str) -> Session:
    """A decoder of pseudo-random weights at tiny scale, its requests cut over all devices."""
    gpus = len(jax.devices())
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"scale": "tiny", "verify_width": _WIDTH, "dtype": "bfloat16"}
        request = make_run_request(model, f"attn_dp={gpus}", pathlib.Path(folder), gpus=gpus, **options)
    capacity, dtype = Capacity(request.requests, request.context), jnp.dtype(request.dtype)
    room = capacity.room(request.layout.dcp)
    program = Program.of(request.model, request.forms, request.layout, room, jax.devices())
    return Session(program, drawn(program, dtype, request.seed), capacity, dtype)


def recorded(model: str, folder: pathlib.Path) -> pathlib.Path:
    """Record some steps; the path of JAX's profile."""
    made = session(model)
    made.step_full(_WIDTH)  # compiles
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with jax.profiler.trace(folder, profiler_options=options):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                made.step_full(_WIDTH)
    (path,) = folder.rglob("*.xplane.pb")
    return path


def trimmed(trace: Trace) -> Trace:
    """The last steps alone, of the annotations what names them."""
    steps = sorted((a for a in trace.annotations if re.search(STEP, a.name)), key=lambda a: a.start)[-KEPT:]
    start, end = steps[0].start, steps[-1].end
    kept = [a for a in trace.annotations if a.start >= start and a.end <= end and (a in steps or a.device is not None)]
    return dataclasses.replace(trace, events=trace.events.within(start, end), annotations=tuple(kept))


def measure(out: pathlib.Path) -> None:
    """Record every model and write what is to be kept of it."""
    out.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        name = f"trace_{model}_{len(jax.devices())}"
        with tempfile.TemporaryDirectory() as folder:
            profile = recorded(model, pathlib.Path(folder))
            trace = read_trace(profile)
            if profile.stat().st_size <= LARGEST:
                (out / f"{name}.xplane.pb").write_bytes(profile.read_bytes())
        about = {"model": model, "device": jax.devices()[0].device_kind, "jax": jax.__version__}
        path = out / f"{name}.json.gz"
        write_chrome(chrome_document(trimmed(trace), about), path)
        analysis = answer(path, read_trace(path)).document()
        (out / f"{name}.analysis.json").write_text(json.dumps(analysis, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(trace.events):,} events recorded, {path.stat().st_size:,} bytes kept", flush=True)


def show(folder: pathlib.Path) -> None:
    """Take apart what is stored."""
    for path in sorted(folder.glob("trace_*.json.gz")):
        Console().print(draw(answer(path, read_trace(path)).document()))


def main() -> int:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", type=pathlib.Path, metavar="DIR", help="record on this machine's devices")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        measure(arguments.measure)
    elif not any(arguments.folder.glob("trace_*.json.gz")):
        sys.exit(f"error: {arguments.folder} holds no traces: record some first, with --measure DIR")
    else:
        show(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
