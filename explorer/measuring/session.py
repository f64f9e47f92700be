"""Benches run one after the other, each row kept at once, within a budget of seconds."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

import numpy as np
from jaxtyping import Array

from explorer.measuring.journal import BANDWIDTH, FAILED, TRIED, Journal
from explorer.measuring.machine import Here
from explorer.measuring.rows import row_of
from hw.compat import COMPILE_TO_RUN_ONCE
from hw.figures import read_chip
from hw.machine import Machine
from hw.measuring import Bench, Chain, Place, chained
from hw.measuring.copies import bandwidths
from hw.work import RATES, Collective, Work
from layouts.decoder.options import compiler_options

Report = Callable[[str, float], None]

_THREADS: Final = 16
# Benches a thread that are compiled before they are timed: while the compiler tunes, no device idles.
_BATCHES: Final = 2
_PAUSE: Final = 3 << 29  # bytes through memory before a chain: 0.5 ms of a device that moves 3 TB a second
_LEAST: Final = 3e-6  # seconds that any kernel is expected to take
_EXCHANGED: Final = 2.5e-5  # and an exchange
_TRIED_OUT: Final = 1e-4  # and anything on simulated devices, whose chains are short: they compile sooner
_REACHED: Final = 0.5  # of the datasheet, roughly, with which the length of a chain is chosen


def measure(
    here: Here,
    benches: Sequence[Bench],
    journal: Journal,
    deadline: float = float("inf"),
    report: Report = lambda stage, fraction: None,
) -> list[str]:
    """Time the benches that the journal lacks until `deadline` (of `time.monotonic`). Names of those left for a next
    run."""
    if BANDWIDTH not in journal.rows:
        report(BANDWIDTH, 0.0)
        journal.add(_bandwidths(here))
    left = [bench for bench in benches if bench.name not in journal.rows]
    total, slowest, threads = len(benches), 0.0, min(_THREADS, os.cpu_count() or 1)
    while left and time.monotonic() + slowest < deadline:
        started = time.monotonic()
        batch, left = left[: _BATCHES * threads], left[_BATCHES * threads :]
        pool = ThreadPoolExecutor(threads)
        try:
            report(f"compiling {batch[0].name}", len(journal.rows) / total)
            chains = [pool.submit(_compiled, here, bench, i) for i, bench in enumerate(batch)]
            wait(chains)
        finally:  # who interrupts does not wait for a batch
            pool.shutdown(wait=False, cancel_futures=True)
        for i, (bench, chain) in enumerate(zip(batch, chains, strict=True)):
            if time.monotonic() > deadline:
                return [b.name for b in (*batch[i:], *left)]
            report(bench.name, len(journal.rows) / total)
            journal.add(_timed(bench, chain))
        slowest = max(slowest, time.monotonic() - started)
    return [bench.name for bench in left]


def roughly(machine: Machine, asks: Work | Collective) -> float:
    """Seconds that one may expect before anything is known: half of what the datasheet promises."""
    if isinstance(asks, Collective):
        return _EXCHANGED + _total(asks.payload) / (_REACHED * float(machine.link_bandwidth))
    peaks = [float(machine.peak[RATES.index(rate)]) for rate in asks.rate]
    computed = sum(float(flops) / peak for flops, peak in zip(np.asarray(asks.flops), peaks, strict=True))
    moved = _total(asks.bytes) / float(machine.hbm_bandwidth)
    return len(peaks) * _LEAST + max(moved, computed) / _REACHED


def _total(column: Array) -> float:
    return float(np.asarray(column).sum())


def _compiled(here: Here, bench: Bench, number: int) -> Chain:
    """On one of the devices, in turn: while one tunes a kernel, the others may tune others."""
    place = Place(here.devices[number % len(here.devices)], bench.mesh, _PAUSE if here.real else 0)
    cache = read_chip(here.machine.sources.chip)["l2_bytes"].value
    expected = roughly(here.machine, bench.asks) if here.real else _TRIED_OUT
    options = compiler_options(here.devices[0].platform) if here.real else COMPILE_TO_RUN_ONCE
    return chained(bench, place, expected, cache, options)


def _bandwidths(here: Here) -> dict[str, Any]:
    try:
        return {"name": BANDWIDTH, "bytes_per_s": bandwidths(here.devices[0], small=not here.real)}
    except Exception as error:  # another program may hold the memory: kernels need less of it
        return {"name": BANDWIDTH, FAILED: _reason(error)}


def _timed(bench: Bench, compiled: Future[Chain]) -> dict[str, Any]:
    """The row of a bench; without seconds, but with the reason, where it does not run here."""
    try:
        chain = compiled.result()
        seconds = chain.seconds()
    except Exception as error:  # whatever a compiler or an allocation raises: the other rows are worth having
        return {"name": bench.name, FAILED: _reason(error)}
    row = row_of(bench.name, bench.asks, seconds)
    return row if chain.form is None else {**row, "form": chain.form, TRIED: list(chain.errors)}


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
