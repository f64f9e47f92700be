"""Steps of our own program as observations: priced as `cost` prices them, in the order in which they were asked."""

import numpy as np
import pytest

from explorer.calibration.factors import FACTORS
from explorer.calibration.programs import Asked, ProgramSteps, adjusted_seconds, program_steps
from explorer.costing import cost
from explorer.launch import program_launch
from explorer.request import Request, make_request, of_program
from layouts.text import parse

# two models in three turns: the stacks' order is not its own inverse
MODELS, LAYOUTS = ("llama-3.1-8b", "qwen3-32b"), ("attn_tp=2", "attn_dp=2", "pp=2")


def asked() -> list[Asked]:
    """Two models in turn, each under three layouts."""
    return [
        Asked(f"{model} {text}", request, parse(text, 2, request.model), 1e-2)
        for text in LAYOUTS
        for model in MODELS
        for request in [request_of(model)]
    ]


def request_of(model: str) -> Request:
    return of_program(make_request(model, "h200", 2, context=4096, concurrency=8, precision="kv=bf16", draft="none"))


@pytest.fixture(scope="module")
def steps() -> ProgramSteps:
    return program_steps(asked(), "some.json", "2026-11-30")


def test_each_step_takes_what_cost_says_in_the_order_asked(steps: ProgramSteps) -> None:
    one = asked()
    found = adjusted_seconds(one[0].request.machine, steps, np.zeros(len(FACTORS) + 1))
    assert found == pytest.approx([cost(a.request, a.layout).step_seconds for a in one], rel=1e-6)
    assert steps.names[1] == "qwen3-32b attn_tp=2" and len(steps.stacks) == len(MODELS)


def test_a_slow_host_is_all_that_a_step_waits_for(steps: ProgramSteps) -> None:
    logs = np.append(np.zeros(len(FACTORS)), np.log(1e3))
    found = adjusted_seconds(asked()[0].request.machine, steps, logs)
    one, several = (program_launch(several=several).seconds * 1e3 for several in (False, True))
    assert found == pytest.approx(np.array([*4 * [several], *2 * [2 * one]]))  # a call a stage, of one GPU under pp


def test_faster_memory_makes_every_step_faster(steps: ProgramSteps) -> None:
    machine, logs = asked()[0].request.machine, np.zeros(len(FACTORS) + 1)
    before = adjusted_seconds(machine, steps, logs)
    logs[[f.name for f in FACTORS].index("gemm.bandwidth.bf16")] = -0.2
    assert (adjusted_seconds(machine, steps, logs) > before * 1.02).all()
