"""What the CPU takes to start a step of our program: the stored measurements, and what a prediction makes of them."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import experiments
import explorer.launch
from explorer.launch import program_launch
from explorer.priced import priced
from explorer.request import PLAIN_BF16, make_request, of_program
from layouts.models.scale import Scale, scaled_config

FILE = pathlib.Path(explorer.launch.__file__).with_suffix(".toml")
STORED = pathlib.Path(experiments.__file__ or "").parent / "results" / "h200"


def measured(name: str) -> Any:
    return json.loads((STORED / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_figures_are_those_measured(gpus: int) -> None:
    """To three digits: the median, and what a tenth of all calls are below and above."""
    points = measured("layouts.json")["points"]
    calls = [row["host"] for key, row in points.items() if "host" in row and key.split("|")[1] == str(gpus)]
    gaps = measured("step_gaps.json")["rows"]
    calls += [row["host"] for row in gaps if row["variant"] == "ours" and row["shape"].split("|")[1] == str(gpus)]
    assert f"median and 80 % of {len(calls)} compiled steps" in FILE.read_text(encoding="utf-8")
    middle, least, most = np.quantile(calls, [0.5, 0.1, 0.9])
    assert program_launch(several=gpus > 1) == pytest.approx((middle, least, most), rel=5e-3)


def test_a_small_step_takes_what_its_launch_takes_and_its_range_is_that_of_the_launch(tmp_path: pathlib.Path) -> None:
    """A tiny model's kernels take some microseconds; each of two stages is started by itself."""
    name = str(scaled_config("llama-3.1-8b", Scale("tiny"), tmp_path))
    request = of_program(make_request(name, "h200", 2, context=64, concurrency=2, draft="none", precision=PLAIN_BF16))
    for layout, calls, several in (("attn_tp=2", 1, True), ("replicas=2", 1, True), ("pp=2", 2, False)):
        launch = program_launch(several=several)
        found = priced(request, request.layout(layout))
        assert found.on_host
        assert (found.faster, found.step, found.slower) == pytest.approx(
            tuple(calls * seconds for seconds in (launch.least, launch.seconds, launch.most))
        )


def test_a_large_step_hides_its_launch() -> None:
    """Half of 16 GB of weights take 1.7 ms at 4.8 TB/s."""
    request = of_program(make_request("llama-3.1-8b", "h200", 2, context=4096, concurrency=2, draft="none"))
    found = priced(request, request.layout("attn_tp=2"))
    assert not found.on_host and found.faster > program_launch(several=True).seconds
