"""The points of the experiment, what is fitted to, a shape that runs, and the figures that are shown."""

import dataclasses
import pathlib
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from experiments.h200_layouts import __main__, picture, predict
from experiments.h200_layouts import measure as measuring
from experiments.h200_layouts.build import Built, build
from experiments.h200_layouts.points import Point, Shape, fitted, in_words, points, shapes
from experiments.h200_layouts.predict import Predicted, asked_of
from experiments.h200_layouts.show import BOUND, GAP, MIDDLE, choices, errors, ordered, read, verdict
from explorer.priced import priced
from layouts.rules import Site, broken
from layouts.text import parse

README = pathlib.Path(__file__).parents[2] / "README.md"
SHAPES = shapes()
POINTS = points(SHAPES)


def test_there_are_enough_points_and_no_two_are_the_same() -> None:
    assert len(POINTS) >= 60
    assert len({p.key for p in POINTS}) == len(POINTS)
    assert {p.shape.slice.model for p in POINTS} == {"kimi-k3", "deepseek-v3", "qwen3-235b-a22b"}
    assert {p.shape.verify for p in POINTS} == {1, 5}
    assert min(p.context for p in POINTS) == 4096 and max(p.context for p in POINTS) == 131072


def test_a_third_is_fitted_to_of_every_model_and_layout() -> None:
    chosen = fitted(POINTS)
    assert chosen == fitted(reversed(POINTS))
    assert chosen != fitted(POINTS, seed=7)
    every = Counter((p.shape.slice.model, p.shape.layout) for p in POINTS)
    some = Counter((p.shape.slice.model, p.shape.layout) for p in POINTS if p.key in chosen)
    assert all(some[stratum] == round(count / 3) for stratum, count in every.items())


def test_every_layout_is_valid() -> None:
    for shape in {(s.slice, s.layout, s.gpus): s for s in SHAPES}.values():
        (asked,) = asked_of([Point(shape, 4096)], [1.0], "h200")
        model = asked.request.model
        assert not broken(parse(shape.layout, shape.gpus, model), Site(model, shape.gpus, 8, 8)), shape.key
        assert asked.request.context <= model.context_limit and shape.longest <= model.context_limit


def tiny(shape: Shape) -> Shape:
    whole = dataclasses.replace(shape.slice, layers=None, experts=None)
    return dataclasses.replace(shape, slice=whole, requests=2, contexts=(16, 64))


def test_a_shape_is_measured_once_and_a_failure_says_why(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = tiny(next(s for s in SHAPES if s.gpus == 1 and s.slice.model.startswith("qwen3")))
    made: list[Shape] = []

    def small(of: Shape, devices: Any) -> Built:
        made.append(of)
        if of.verify == 2:
            raise ValueError("no such width")
        return build(of, devices, "tiny")

    monkeypatch.setattr(measuring, "build", small)
    bad, file = dataclasses.replace(shape, verify=2), tmp_path / "layouts.json"
    measuring.measure([shape, bad], file, 600.0, report=lambda line: None)
    rows = measuring.Results(file).rows
    assert {key for key, row in rows.items() if row.get("flight", 0) > 0} == {p.key for p in points([shape])}
    assert rows[bad.key]["error"] == "ValueError: no such width"
    assert {rows[p.key]["forms"]["attention"] for p in points([shape])} == {"xla"}
    measuring.measure([shape], file, 600.0, report=lambda line: None)
    assert made.count(shape) == 1


def test_tables_lead_to_other_rows_for_every_request_and_contexts_are_lengths() -> None:
    shape = dataclasses.replace(tiny(SHAPES[0]), verify=1)
    built = build(shape, jax.devices(), "tiny")
    step = built._step(16)  # pyright: ignore[reportPrivateUsage]
    slots = np.asarray(step.batch.slots)
    assert slots.shape == (2, 64) and len(np.unique(slots)) == slots.size and slots.min() > 0
    assert step.batch.lengths.tolist() == [15, 15]


def test_points_are_predicted_as_a_run_of_them_is() -> None:
    """By the curves alone, a point takes what `run` says of its program."""
    few = POINTS[:2]
    found = predict.predicted(few, {p.key: {"flight": 1.0} for p in few}, "h200", frozenset({few[0].key}))
    for asked, seconds in zip(asked_of(few, [1.0, 1.0], "h200"), found.before, strict=True):
        assert priced(asked.request, asked.layout).step == pytest.approx(seconds, rel=1e-9)


def predicted(measured: list[float], said: list[float]) -> Predicted:
    """Two layouts of two questions; the first point was fitted to."""
    two = [s for s in SHAPES if s.gpus == 2 and s.slice.model == "deepseek-v3"][:2]
    of = tuple(Point(shape, context) for context in (4096, 131072) for shape in two)
    fits = np.array([True, False, False, False])
    return Predicted(of, np.array(measured), np.array(said) * 2.0, np.array(said), fits, ())


def test_errors_are_those_of_points_held_out() -> None:
    found = predicted([1.0, 1.0, 1.0, 2.0], [3.0, 1.1, 0.9, 2.0])
    assert errors(found).tolist() == pytest.approx([0.1, 0.1, 0.0])
    assert errors(found, held_out=False).tolist() == pytest.approx([2.0])
    assert "median error 10.0 %" in verdict(found)[0] and "1 within 8.0 %" in verdict(found)[0]


def test_the_best_layout_is_asked_for_where_the_gap_is_wide() -> None:
    found = predicted([1.0, 1.02, 1.0, 2.0], [1.1, 1.0, 1.0, 2.0])
    near, wide = choices(found)
    assert (near.gap, near.lost) == pytest.approx((0.02, 0.02)) and near.best != near.named
    assert wide.gap == pytest.approx(1.0) and wide.best == wide.named
    assert verdict(found)[-1] == "best layout named right in 1 of 1 questions with a gap above 5.0 %"


def test_pairs_are_those_of_one_question_held_out_whose_gap_is_wide() -> None:
    """The first point was fitted to, so that its pair does not count."""
    assert ordered(predicted([1.0, 2.0, 1.0, 2.0], [2.0, 1.0, 1.0, 1.5])) == (1, 1)
    assert ordered(predicted([1.0, 2.0, 3.0, 2.0], [1.0, 2.0, 0.9, 1.0])) == (0, 1)
    assert ordered(predicted([1.0, 2.0, 1.0, 1.0], [1.0, 2.0, 2.0, 1.0])) == (0, 0)


def test_the_stored_points_are_predicted_as_well_as_we_say() -> None:
    """The curves, the program's ops and what launches take, together: whoever moves one sees here what it does."""
    found = read(__main__.RESULTS)
    off, wide = errors(found), [c for c in choices(found) if c.gap > GAP]
    alone = np.abs(found.before / found.measured - 1.0)[~found.fitted]  # what is fitted could hide what is wrong
    median, largest, within = float(np.median(off)), float(off.max()), int((off <= BOUND).sum())
    one = np.array([point.shape.gpus == 1 for point in found.points])[~found.fitted]
    assert len(off) == 121 and one.sum() == 18 and median <= MIDDLE and within == len(off) and largest < 0.078
    assert float(np.median(off[one])) < 0.01
    assert float(np.median(alone)) < 0.055 and float(alone[one].max()) < 0.09 and float(alone.max()) < 0.118
    assert len(wide) == 1 and all(c.best == c.named for c in wide) and ordered(found) == (67, 67)
    said = " ".join((__main__.__doc__ or "").split())
    assert f"Of {len(off)} held out the median error is {100 * median:.1f} %" in said
    assert f"{within} are within the bar of 8 %" in said and f"the largest error is {100 * largest:.1f} %" in said
    assert "in {} of {} pairs".format(*ordered(found)) in said
    short = f"{len(off)} held out the median error is {100 * median:.1f} %, the largest {100 * largest:.1f} %"
    assert short in README.read_text(encoding="utf-8")


def test_the_picture_has_every_layout_that_was_held_out(tmp_path: pathlib.Path) -> None:
    found = predicted([1.0, 1.02, 1.0, 2.0], [1.1, 1.0, 1.0, 2.0])
    figure = picture.drawn(found)
    left, right = figure.axes
    assert [tick.get_text().replace("\n", "") for tick in right.get_yticklabels()] == [
        f"{in_words(p.shape.gpus)}: {p.shape.layout}" for p in found.points[1:3]
    ]
    assert left.get_xlim() == left.get_ylim()
    picture.write(found, tmp_path / "layouts.png")
    assert (tmp_path / "layouts.png").stat().st_size > 10_000
