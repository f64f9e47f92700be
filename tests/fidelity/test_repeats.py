"""What is counted once, what is ambiguous, and how far repeated inputs lie apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.fidelity.folds import by_model
from explorer.fidelity.repeats import AMBIGUOUS, ambiguous, distinct, groups, noise_floor
from explorer.fidelity.runs import Pool, Run

BASE = Run(
    *("a", "file", "m", "M", "chip"), engine="e", concurrency=8, pool=Pool(1, 8), input_tokens=1024, output_tokens=512
)


def run(tpot: float, ttft: float | None = 1.0, **changes: Any) -> Run:
    figures = {"tpot": tpot} if ttft is None else {"tpot": tpot, "ttft": ttft}
    return replace(BASE, measured=figures, **changes)


def test_a_copied_row_counts_once_whatever_its_name() -> None:
    rows = [run(1), run(1, id="b", source="g", stated_model="N", engine_version="2"), run(1 + 1e-14), run(1.001)]
    found = distinct(rows)
    assert (found.runs, found.repeated, found.restated) == ((rows[0], rows[3]), 2, 0)


def test_of_a_restated_run_the_fullest_row_is_kept() -> None:
    full = run(1, pool=Pool(1, 8, 1, 1, 1, 8, 64))
    partly = run(1, pool=Pool(1, 8, batch=64))
    for rows in ([run(1), full, partly], [partly, run(1), full], [full, partly, run(1)]):
        found = distinct(rows)
        assert (found.runs, found.repeated, found.restated) == ((full,), 0, 2)


def test_of_rows_that_say_as_much_the_first_is_kept() -> None:
    rows = [run(1, pool=Pool(1, 8, 1)), run(1, pool=Pool(1, 8, 2))]
    assert distinct(rows).runs == (rows[0],)


@pytest.mark.parametrize("changes", [{"concurrency": 9}, {"hardware": "x"}, {"engine": "x"}, {"input_tokens": 9}])
def test_equal_figures_of_another_load_are_another_run(changes: dict[str, Any]) -> None:
    assert len(distinct([run(1), run(1, **changes)]).runs) == 2


def test_one_figure_alone_may_be_chance() -> None:
    assert len(distinct([run(1, None), run(1, None, pool=Pool(1, 4))]).runs) == 2


@pytest.mark.parametrize(("factor", "apart"), [(0.999 * AMBIGUOUS, False), (1.001 * AMBIGUOUS, True)])
def test_ambiguity_is_by_the_factor_between_equal_inputs(factor: float, apart: bool) -> None:
    rows = [run(1), run(5, concurrency=9), run(factor, engine_version="9"), run(1.01)]
    assert ambiguous(rows) == (apart, False, apart, apart)


def test_ttft_does_not_make_a_group_ambiguous() -> None:
    assert ambiguous([run(1, 1), run(1, 9)]) == (False, False)


def test_known_speculation_is_an_input() -> None:
    assert ambiguous([run(1, verify_width=1), run(2, verify_width=8)]) == (False, False)


def test_noise_floor_by_hand() -> None:
    """Medians 2 and 12: off by 1/2, 0, 1/2 and by 1/6, 1/6. A run that is alone counts nowhere."""
    rows = [run(1), run(2), run(3), run(10, None, concurrency=9), run(14, None, concurrency=9), run(7, concurrency=10)]
    floor = noise_floor(rows)
    tpot = floor["tpot"]
    assert (tpot.groups, tpot.runs, tpot.factor) == (2, 5, 3)
    assert tpot.median == pytest.approx(1 / 6)
    assert tpot.p90 == pytest.approx(0.5)
    assert (floor["ttft"].groups, floor["ttft"].p90, floor["ttft"].factor) == (1, 0, 1)
    assert noise_floor([run(1), run(1, concurrency=3)]) == {}


def test_a_quantity_measured_once_in_a_group_counts_nowhere() -> None:
    floor = noise_floor([run(1, 5), run(1, None), run(2, 7, concurrency=9), run(2, 9, concurrency=9)])
    assert (floor["ttft"].groups, floor["ttft"].runs) == (1, 2)


def test_the_90th_percentile_is_between_the_order_statistics() -> None:
    """Ten at the median, nine 0.1 to 0.9 off it: place 0.9 * 18 = 16.2, between 0.7 and 0.8."""
    floor = noise_floor([run(1, None)] * 10 + [run(1 + k / 10, None) for k in range(1, 10)])
    assert floor["tpot"].p90 == pytest.approx(0.72)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0.5, 2)), min_size=1, max_size=12))
def test_groups_and_floor_equal_plain_python(rows: list[tuple[int, float]]) -> None:
    runs = [run(value, None, concurrency=load) for load, value in rows]
    by_load = {load: [v for other, v in rows if other == load] for load, _ in rows}
    assert [len(group) for group in groups(runs)] == [len(values) for values in by_load.values()]
    assert ambiguous(runs) == tuple(max(by_load[load]) / min(by_load[load]) > AMBIGUOUS for load, _ in rows)
    several = [values for values in by_load.values() if len(values) > 1]
    off = [abs(v / np.median(values) - 1) for values in several for v in values]
    if not off:
        assert noise_floor(runs) == {}
        return
    floor = noise_floor(runs)["tpot"]
    assert (floor.groups, floor.runs) == (len(several), len(off))
    assert floor.median == pytest.approx(np.median(off))
    assert floor.factor == pytest.approx(max(max(v) / min(v) for v in several))


def test_a_model_is_held_out_whole() -> None:
    runs = [run(1), run(2, model="n"), run(3)]
    first, second = by_model(runs)
    assert (first.model, first.held_out, first.fitted) == ("m", (runs[0], runs[2]), (runs[1],))
    assert (second.model, second.held_out, second.fitted) == ("n", (runs[1],), (runs[0], runs[2]))
