"""vLLM's budget for KV against start-up logs."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_memory import (
    Measured,
    kv_budget,
    requested_bytes,
    suggested_kv_bytes,
)

GIB = 2**30


def measured(total: float, weights: float, *, free: float | None = None, **gib: float) -> Measured:
    rest = {name: round(value * GIB) for name, value in gib.items()}
    return Measured(round(total * GIB), round(weights * GIB), free=None if free is None else round(free * GIB), **rest)


@pytest.mark.parametrize(
    ("log", "utilisation", "kv"),
    [
        # vllm#13074, TP 8 x PP 2
        (measured(139.72, 39.66, non_torch=2.53, peak=0.24), 1.0, 97.29),
        # vllm#10517: the log's peak includes the weights
        (measured(23.58, 14.9888, non_torch=0.35, peak=17.06 - 14.9888), 0.9, 3.81),
        (measured(23.58, 14.9888, non_torch=0.35, peak=17.98 - 14.9888), 0.9, 2.89),
        # vllm#50576: consumed 40.33 GiB, and a peak of 3.12 GiB that includes the graphs' estimate of 2.44
        (measured(47.4, 40.33, peak=3.12 - 2.44, graphs=2.44), 0.95, 1.58),
        # vllm#11251
        (measured(15.77, 7.51, non_torch=0.39, peak=2.53), 0.9, 3.76),
        # vllm#16570
        (measured(39.38, 34.43, non_torch=0.34, peak=2.51), 0.95, 0.13),
    ],
)
def test_budget_of_logs(log: Measured, utilisation: float, kv: float) -> None:
    # each figure of a log is rounded to 0.01 GiB
    assert kv_budget(log, utilisation).kv / GIB == pytest.approx(kv, abs=0.015)


def test_a_share_of_everything_leaves_nothing_for_graphs() -> None:
    # vllm#13074 ran out of memory: its version deducted no graphs
    log = measured(139.72, 39.66, non_torch=2.53, peak=0.24, graphs=1.5)
    assert kv_budget(log, 1.0).outside == 0
    assert kv_budget(log, 1.0, deduct_graphs=False).outside == -round(1.5 * GIB)
    assert kv_budget(log, 1.0, deduct_graphs=False).kv - kv_budget(log, 1.0).kv == round(1.5 * GIB)
    # 0.33.0 refuses it, as a GPU is never quite empty when the engine starts
    with pytest.raises(EngineRuleError, match=r"139\.72 GiB, but 139\.20 GiB are free at start-up: set it to 0\.99"):
        kv_budget(measured(139.72, 39.66, free=139.2), 1.0)


def test_default_share() -> None:
    assert requested_bytes(100) == 92
    assert requested_bytes(101) == 93
    for fraction in (0.0, 1.01):
        with pytest.raises(EngineRuleError, match="above 0 and at most 1"):
            requested_bytes(100, fraction)


def test_suggested_sizes_leave_a_margin_and_count_graphs_twice() -> None:
    # vllm#50576 captured 2.51 GiB; by hand 45.03 - 40.33 - 3.12 - 2.51 - 0.1465
    within, whole = suggested_kv_bytes(measured(47.4, 40.33, peak=0.68, graphs=2.44, free=47), round(2.51 * GIB), 0.95)
    assert within / GIB == pytest.approx(47.4 * 0.95 - 40.33 - 3.12 - 2.51 - 150 / 1024, abs=1e-6)
    assert whole / GIB == pytest.approx(47 - 40.33 - 3.12 - 2.51 - 150 / 1024, abs=1e-6)


def test_no_more_is_free_than_there_is() -> None:
    with pytest.raises(EngineRuleError, match="free at start-up"):
        Measured(100, 10, free=101)
