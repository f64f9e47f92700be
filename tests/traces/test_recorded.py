"""Traces that profilers recorded on two H200s, by `experiments.h200_torch_trace` and `experiments.h200_trace`."""

import json
import pathlib

import numpy as np
import pytest

from explorer.traces.analysis import analyse
from explorer.traces.events import Kind
from explorer.traces.reading import read_trace

RESULTS = pathlib.Path(__file__).parents[2] / "experiments" / "results" / "h200"


def test_pytorch_records_copies_on_the_gpu_that_they_leave() -> None:
    facts = json.loads((RESULTS / "torch_trace.facts.json").read_text(encoding="utf-8"))
    trace = read_trace(RESULTS / "torch_trace.json.gz")
    copies = trace.events.kind == list(Kind).index(Kind.PEER_COPY)
    count = facts["steps"] * facts["layers"] * facts["copies_a_layer"]
    assert copies.sum() == count
    assert set(trace.events.device[copies]) == {1}
    assert set(trace.events.bytes[copies]) == {facts["bytes_a_copy"]}


def test_pytorch_copies_reach_what_nvlink_gives_one_copy() -> None:
    """18 links of 25 GB/s one way are 450; a copy of 8 MiB reaches most of it."""
    found = analyse(read_trace(RESULTS / "torch_trace.json.gz"), device=1)
    most = max(found.copy_groups, key=lambda group: group.count)
    assert most.copy_bandwidth is not None and 300e9 < most.copy_bandwidth < 450e9


def test_layers_of_pytorch_are_those_that_were_annotated() -> None:
    facts = json.loads((RESULTS / "torch_trace.facts.json").read_text(encoding="utf-8"))
    found = analyse(read_trace(RESULTS / "torch_trace.json.gz"), device=0)
    assert [kind.count for kind in found.layer_kinds] == [facts["steps"] * facts["layers"]]


@pytest.mark.parametrize("name", ["trace_deepseek-v3_2.xplane.pb", "trace_deepseek-v3_2.json.gz"])
def test_jax_on_gpus_runs_kernels_and_nccl_on_both(name: str) -> None:
    trace = read_trace(RESULTS / name)
    assert set(trace.events.device) == {0, 1}
    communication = trace.events.kind == list(Kind).index(Kind.COMMUNICATION)
    assert 0 < communication.sum() < len(trace.events.kind) / 4
    assert np.all(trace.events.end > trace.events.start)
