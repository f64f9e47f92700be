"""Of a recorded trace the last steps are kept, whole and alone."""

import numpy as np

from experiments.h200_trace import KEPT, trimmed
from explorer.traces.analysis import analyse
from explorer.traces.events import Annotation, Events, Kind, Recorder, Trace
from explorer.traces.xplane import SOURCE


def made(steps: int) -> Trace:
    """A kernel of 3 us in each step of 10 us, one between two steps, and a word of the host's in each."""
    recorder = Recorder()
    for start in range(0, 10_000 * steps, 10_000):
        recorder.add("gemm", "13", 0, Kind.KERNEL, start + 2000, start + 5000)
        recorder.add("between", "13", 0, Kind.KERNEL, start + 8500, start + 8900)
    marks = [Annotation("step", s, s + 8000) for s in range(0, 10_000 * steps, 10_000)]
    words = [Annotation("PjitFunction(step)", a.start + 100, a.start + 200) for a in marks]
    return Trace(SOURCE, recorder.events(), (*marks, *words))


def names(events: Events) -> list[str]:
    return [events.names[n] for n in events.name]


def test_the_last_steps_are_kept_with_what_names_them():
    whole = made(6)
    kept = trimmed(whole)
    assert [a.start for a in kept.annotations] == [30_000, 40_000, 50_000]
    assert names(kept.events) == ["gemm", "between", "gemm", "between", "gemm"]
    assert analyse(kept).steps.count == KEPT
    np.testing.assert_allclose(analyse(kept).time.union_seconds, 3e-6)
