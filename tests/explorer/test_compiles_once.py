"""A sweep compiles once: neither load, budget, hardware figures nor another count of layouts compiles again."""

import numpy as np

from explorer import evaluate as priced
from explorer.evaluate import Tables, evaluate_batch
from explorer.request import make_request
from layouts.enumerate import enumerate_layouts


def test_a_sweep_over_loads_and_machines_compiles_once(monkeypatch) -> None:
    traced = []
    original = priced.evaluate

    def counting(*args):
        traced.append(1)
        return original(*args)

    monkeypatch.setattr(priced, "evaluate", counting)
    request = make_request("llama-3.1-8b", "h100", 8, context=4096, concurrency=8)
    tables, space = Tables(request.model), enumerate_layouts(request.site)
    assert space is not None
    steps = []
    for hardware in ("h100", "h200"):
        for context in (1000, 4096, 65_536):
            for concurrency in (1, 7, 256):
                asked = make_request("llama-3.1-8b", hardware, 8, context=context, concurrency=concurrency)
                steps.append(evaluate_batch(tables, space.cuts(), asked.case()).step)
    few = evaluate_batch(tables, space.take(np.arange(3)).cuts(), request.case())
    assert len(traced) <= 1  # none where an earlier test compiled the same program
    assert len({float(step[0]) for step in steps}) > len(steps) // 2  # short steps are all as long as the CPU takes
    assert few.step.shape == (3,)
