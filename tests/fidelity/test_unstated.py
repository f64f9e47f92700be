"""What sources leave unsaid: how lengths spread, workers and batches of pools, whether a configuration speculates."""

from dataclasses import replace

import pytest

from explorer.fidelity import names
from explorer.fidelity.files import Loaded
from explorer.fidelity.repeats import AMBIGUOUS, of_ambiguous_configuration
from explorer.fidelity.runs import Interval, Pool, Run, mean_share
from explorer.fidelity.score import score

BASE = Run(
    *("a", "file", "m", "M", "chip"), engine="e", concurrency=8, pool=Pool(1, 8), input_tokens=1024, output_tokens=512
)
APART = replace(BASE, mode="disagg", pool=None, prefill=Pool(2, 4), decode=Pool(1, 8, batch=4))


def run(tpot: float, **changes: object) -> Run:
    return replace(BASE, measured={"tpot": tpot}, **changes)


@pytest.mark.parametrize(
    ("source", "share"),
    [
        ("InferenceMAX 2025-10; silicon_concurrency=4", 0.8),
        ("db; workflow_run_id=7", 0.8),
        ("DB; WIP=1", 0.8),
        ("sglang pull 1", 1.0),
        ("", 1.0),
    ],
)
def test_lengths_of_a_benchmark(source: str, share: float) -> None:
    assert names.shortest(source) == share


@pytest.mark.parametrize(("shortest", "mean"), [(1.0, 1.0), (0.8, 0.9), (0.0, 0.5)])
def test_the_mean_of_a_draw(shortest: float, mean: float) -> None:
    assert mean_share(shortest) == replace(BASE, shortest=shortest).mean_share == pytest.approx(mean)


@pytest.mark.parametrize(
    ("prefill", "decode", "unstated"),
    [
        (Pool(2, 4), Pool(1, 8), False),
        (Pool(2, 4), Pool(None, 8, batch=4), False),
        (Pool(2, 4), Pool(None, 8), True),
        (Pool(None, 4), Pool(1, 8), True),
    ],
)
def test_a_pool_says_its_workers_or_what_each_runs(prefill: Pool, decode: Pool, unstated: bool) -> None:
    assert replace(APART, prefill=prefill, decode=decode).unstated is unstated


def test_one_instance_needs_neither() -> None:
    assert not replace(BASE, pool=Pool(None, 8)).unstated


def test_a_configuration_is_what_is_served_at_whatever_load() -> None:
    loads = [
        {"concurrency": 99}, {"input_tokens": 1}, {"output_tokens": 1}, {"id": "b"}, {"source": "s"}, {"shortest": 0.8},
        {"pool": Pool(4, 8, batch=64)}, {"engine_version": "2"},
    ]  # fmt: skip
    assert {replace(BASE, **changes).configuration for changes in loads} == {BASE.configuration}
    served = [
        {"model": "n"}, {"hardware": "c"}, {"engine": "f"}, {"gemm": "fp8"}, {"moe": "fp8"}, {"kv": "fp8"},
        {"pool": Pool(1, 4)}, {"mode": "disagg"}, {"layout": "attn_tp=8"},
    ]  # fmt: skip
    assert len({replace(BASE, **changes).configuration for changes in served} | {BASE.configuration}) == 10


def test_an_ambiguous_load_makes_its_configuration_doubtful() -> None:
    """Two figures of one load lie apart: nobody knows of another load of it, nor of it with other workers; of another
    layout, one does."""
    rows = [run(1), run(2), run(1, concurrency=9), run(1, pool=Pool(3, 8)), run(1, pool=Pool(1, 4))]
    assert of_ambiguous_configuration(rows) == (True, True, True, True, False)


@pytest.mark.parametrize(("factor", "doubtful"), [(0.999, False), (1.001, True)])
def test_a_tpot_that_falls_with_more_clients_is_of_two_servers(factor: float, doubtful: bool) -> None:
    """By more than reruns do, from any concurrency to any higher one."""
    fallen = 2.0 / (AMBIGUOUS * factor)
    rows = [run(2.0, concurrency=8), run(1.0, concurrency=4), run(fallen, concurrency=32), run(2.0, concurrency=16)]
    assert of_ambiguous_configuration(rows) == (doubtful,) * 4


def test_what_cannot_be_compared_does_not_fall() -> None:
    """Other lengths, other quantities, no concurrency."""
    rows = [
        run(9.0, concurrency=1, input_tokens=99),
        run(9.0, concurrency=None),
        replace(BASE, concurrency=2, measured={"ttft": 9.0}),
        run(1.0, concurrency=64),
    ]
    assert of_ambiguous_configuration(rows) == (False,) * 4


def test_scores_of_the_unstated_and_of_those_beyond_doubt() -> None:
    """Two loads of a configuration, one of them ambiguous; one of another; a pool that says nothing."""
    rows = [
        run(1.0, id="a"), run(2.0, id="b"), run(1.0, id="c", concurrency=9), run(1.0, id="d", engine="f"),
        replace(APART, id="e", decode=Pool(None, 8), measured={"tpot": 1.0}),
    ]  # fmt: skip
    found = {each.name: each for each in score(Loaded(tuple(rows), ()), lambda _: {"tpot": Interval(1, 1, 1)}).sets}
    counts = {name: found[name].n for name in ("tpot", "tpot ambiguous", "tpot unstated", "tpot: no load ambiguous")}
    assert counts == {"tpot": 2, "tpot ambiguous": 2, "tpot unstated": 1, "tpot: no load ambiguous": 1}
    assert found["tpot: e"].n == 1  # a part of the plain set alone
