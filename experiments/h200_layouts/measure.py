"""Measuring: shapes compiled in threads, weights shared by those of a layout, results written as they come."""

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

import jax

from experiments.h200_layouts.build import Built, build
from experiments.h200_layouts.points import Point, Shape
from experiments.h200_layouts.results import Results
from hw.measuring.flight import times

# Shapes compiled at once: what the compiler learns of a product holds for the waves behind, and twenty starve a host of
# 32 cores.
WAVE: Final = 6
Report = Callable[[str], None]


def measure(wanted: Sequence[Shape], path: pathlib.Path, seconds: float, report: Report = print) -> None:
    """Measure what is missing of `wanted` until it is done or `seconds` are over.

    Shapes are compiled in waves, all of one at once, and nothing compiles while steps are timed: the compiler tries
    kernels on the same devices. A wave whose compiler does not end in time is not timed. A shape that fails says why in
    a row of its own.
    """
    results, end = Results(path), time.monotonic() + seconds
    left = [s for s in wanted if results.missing(s) and s.gpus <= len(jax.devices())]
    with ThreadPoolExecutor(WAVE) as pool:
        for start in range(0, len(left), WAVE):
            wave = sorted(left[start : start + WAVE], key=_weights_of)
            made = {shape: pool.submit(_compiled, shape) for shape in wave}
            _, late = wait(made.values(), timeout=max(end - time.monotonic(), 0.0))
            report(f"{len(wave) - len(late)} compiled, {len(late)} not, {end - time.monotonic():.0f} s left")
            if late:
                pool.shutdown(wait=False, cancel_futures=True)
                return
            for _, group in groupby(wave, key=_weights_of):
                _time_group({shape: made[shape] for shape in group}, results, end, report)


def _weights_of(shape: Shape) -> tuple[str, int, str]:
    """Shapes for which this is the same have the same weights in the same places."""
    return (shape.slice.model, shape.gpus, shape.layout)


def _compiled(shape: Shape) -> tuple[Built, Any, float]:
    """A shape's program, the executable of its step, and the seconds that it took to make."""
    start = time.monotonic()
    built = build(shape, jax.devices())
    return built, built.lowered().compile(), time.monotonic() - start


def _time_group(
    made: Mapping[Shape, Future[tuple[Built, Any, float]]], results: Results, end: float, report: Report
) -> None:
    """Time shapes that share their weights, which are drawn once."""
    held: Any = None
    for shape, future in made.items():
        if time.monotonic() > end:
            return
        try:
            built, executable, compiling = future.result()
            held = built.weights() if held is None else held
            _time_shape(built, executable, held, compiling, results, report)
        except Exception as error:  # whatever a compiler or a device raises: the other shapes are still measured
            reason = (str(error).splitlines() or [""])[0]
            results.put(shape.key, {"error": f"{type(error).__name__}: {reason[:300]}"})
            report(f"{shape.key}: {type(error).__name__}: {reason[:150]}")


def _time_shape(built: Built, executable: Any, held: Any, compiling: float, results: Results, report: Report) -> None:
    shape, caches = built.shape, built.caches()
    forms = {op: choice.form for op, choice in built.stage.kernels._asdict().items()}
    for context in results.missing(shape):
        entering, step = built.placed(context)

        def run(caches: Any, entering: Any = entering, step: Any = step) -> tuple[Any, Any]:
            stepped = executable(held, entering, caches, step)
            return stepped.leaving, stepped.caches

        found, caches = times(run, caches)
        results.put(Point(shape, context).key, {**asdict(found), "compiling": compiling, "forms": forms})
        report(f"{shape.key}|{context}: {found.flight * 1e3:.3f} ms, synced {found.synced * 1e3:.3f}")
