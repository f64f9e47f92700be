"""Tables and pictures: the figures of a document arrive in them, in the right unit, at any width."""

import copy
import io
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console, RenderableType

from explorer.report import compare, cost, memory, plan, sensitivity
from explorer.report.common import Keys, by_group, number
from explorer.report.pictures import save
from explorer.report.pictures.bars import memory as memory_bars
from explorer.report.pictures.candidates import candidates
from explorer.report.pictures.style import WAIT
from explorer.report.pictures.timeline import timeline
from explorer.report.sheet import Sheet
from hw.units import GIB
from tests.explorer.samples import ALL, COMPARE, COST, MEMORY, PLAN, SENSITIVITY, Document

DRAW: dict[str, Callable[[Document], RenderableType]] = {
    "plan/1": plan.draw,
    "cost/1": cost.draw,
    "memory/1": memory.draw,
    "sensitivity/1": sensitivity.draw,
    "compare/1": compare.draw,
}


def text(drawn: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(drawn: str, start: str) -> list[list[str]]:
    """Cells of the rows that begin with some words; cells stand at least two blanks apart."""
    found = [line.strip() for line in drawn.splitlines() if line.strip().startswith(start)]
    return [re.split(r"\s{2,}", line) for line in found]


def drawn_figure(draw: Callable[[Any, Figure], None], document: Document) -> Figure:
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    draw(document, figure)
    return figure


@pytest.mark.parametrize("document", ALL, ids=lambda document: document["schema"])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_fits_the_terminal_and_has_no_codes_in_a_pipe(document: Document, width: int) -> None:
    drawn = text(DRAW[document["schema"]](document), width)
    assert max(map(len, drawn.splitlines())) <= width
    assert "\x1b" not in drawn


@pytest.mark.parametrize("document", ALL, ids=lambda document: document["schema"])
def test_head_repeats_the_question(document: Document) -> None:
    head = text(DRAW[document["schema"]](document)).splitlines()[0]
    assert head.rstrip() == ("toy + mtp | 16 x b200 | decode, context 100,000 | concurrency 64 | verify 5 | accept 3.5")


def test_markup_in_a_name_is_text() -> None:
    document = copy.deepcopy(COST)
    document["ops"][0]["name"] = "[red]op[/]"
    document["request"]["model"] = "[bold]m"
    drawn = text(cost.draw(document))
    assert "[red]op[/]" in drawn
    assert "[bold]m" in drawn


def test_plan_puts_the_answer_first() -> None:
    drawn = " ".join(text(plan.draw(PLAN)).split())
    assert "50.00 ms (range 45.0 to 60.0 ms)" in drawn
    assert "14.29 ms" in drawn  # 50 / 3.5
    assert "4,480 tok/s, 280 tok/s/GPU, 70 tok/s/user" in drawn  # 64 x 3.5 / 0.05
    assert "weights 94.75" in drawn
    assert "42,992,000 the instance" in drawn
    assert "384 requests (limit: slots)" in drawn
    assert "All 1,234 valid layouts were evaluated: regret of the gradient 0.00 %" in drawn
    assert "32 exact evaluations" in drawn


def test_candidates_mark_the_best_and_those_that_do_not_fit() -> None:
    drawn = text(plan.draw(PLAN))
    table = drawn[drawn.index("Candidates") :]
    assert [row[:3] for row in rows(table, "*")] == [["*", "attn_dp=2,dcp=8,ep=16", "50.00"]]
    assert rows(table, "attn_tp=16")[0][-1] == "does not fit"
    assert rows(table, "attn_dp=16")[0][5] == "51.10"


def test_a_space_that_was_not_enumerated_is_not_certified() -> None:
    search = PLAN["search"] | {"space": None, "regret": None}
    sentence = plan.search_sentence(PLAN | {"search": search})
    assert sentence.endswith("not enumerated: the answer is not certified.")


def test_a_planned_concurrency_is_why_nothing_is_certified() -> None:
    open_ = {"request": PLAN["request"] | {"concurrency": None}, "best": PLAN["best"] | {"certified": False}}
    sentence = plan.search_sentence(PLAN | open_ | {"search": PLAN["search"] | {"enumerated": 13 * 1234}})
    assert "All 1,234 valid layouts were evaluated at 13 concurrencies:" in sentence
    assert sentence.endswith("the concurrency was tried in steps only.")


def test_cost_by_kind_and_op() -> None:
    drawn = text(cost.draw(COST))
    assert "step 5.00 ms (range 4.0 to 7.0 ms)" in drawn
    assert rows(drawn, "gather ") == [["gather", "3.00", "2.00", "1.00", "60.0"]]
    kinds = drawn[drawn.index("Time by kind") : drawn.index("Longest ops")]
    assert rows(kinds, "KDA + MoE") == [["KDA + MoE", "1", "2.00", "3.00", "1.00", "60.0", "3.000"]]
    assert rows(kinds, "sum") == [["sum", "2", "4.00", "3.00", "1.00", "100.0"]]
    ops = drawn[drawn.index("Longest ops") :]
    assert rows(ops, "mla_decode") == [["mla_decode", "MLA + MoE", "main", "1", "1,900.0", "1.90", "compute", "fitted"]]


def test_ops_beyond_the_longest_are_summed() -> None:
    document = copy.deepcopy(COST)
    document["ops"] = [COST["ops"][1] | {"name": f"op{i}", "seconds_total": 1e-3} for i in range(20)]
    assert rows(text(cost.draw(document)), "4 more")[0] == ["4 more", "4.00"]


def test_ledger_sums_by_group_in_gib() -> None:
    drawn = text(memory.draw(MEMORY))
    assert rows(drawn, "weights ")[0] == ["weights", "94.75"]
    assert rows(drawn, "sum") == [["sum", "157.50"]]
    assert rows(drawn, "CUDA graphs")[0][:3] == ["CUDA graphs", "10.25", "7.69 to 15.38"]
    assert "staging: draft" not in drawn, "a line without bytes is left out"
    assert rows(drawn, "requests that run") == [["requests that run", "384 (limit: slots)"]]
    assert rows(drawn, "mem_fraction") == [["mem_fraction", "0.934 (the engine's own default: 0.900)"]]


def test_ledger_that_does_not_fit_says_why_and_what_would_do() -> None:
    drawn = text(memory.draw(MEMORY | {"feasible": False, "reason": "short of 3 GiB", "remedy": "ep=32"}))
    assert "does not fit" in drawn
    assert rows(drawn, "short") == [["short", "short of 3 GiB"]]
    assert rows(drawn, "would do") == [["would do", "ep=32"]]


def test_sensitivity_is_ordered_by_strength() -> None:
    drawn = text(sensitivity.draw(SENSITIVITY))
    order = [drawn.index(name) for name in ("hbm_bandwidth", "gemm.latency", "context  ")]
    assert order == sorted(order)
    assert rows(drawn, "hbm_bandwidth")[0][1:3] == ["7.7 TB/s", "-0.400"]
    assert rows(drawn, "gemm.latency")[0][1:3] == ["11.4 us", "+0.200"]
    assert "1 without effect" in drawn
    assert "accept  " not in drawn


def test_compare_converts_by_unit() -> None:
    drawn = text(compare.draw(COMPARE))
    assert rows(drawn, "staging written") == [["staging written", "48.411", "14.772", "-33.639", "GB", "attn_tp 1 / 8"]]
    assert rows(drawn, "KV pool") == [["KV pool", "41.10", "34.60", "-6.50", "GiB", "slots 33 / 209"]]
    assert rows(drawn, "KV tokens a rank")[0][1:5] == ["3,192,000", "2,687,000", "-505,000", "tokens"]
    assert rows(drawn, "step  ") == [["step", "78.80", "68.50", "-10.30", "ms", "most: qkv_proj"]]
    assert rows(drawn, "dcp_exchange")[0][3] == "+0.332"
    assert "nothing" not in drawn


def test_sheet_gives_up_spare_columns_in_their_order() -> None:
    sheet = Sheet("t", "name", "first", "second", left=("name",), spare=("second", "first"))
    sheet.add("a" * 20, "1" * 20, "2" * 20)
    at = {width: text(sheet, width) for width in (80, 50, 30)}
    assert ["2" in at[80], "1" in at[80]] == [True, True]
    assert ["2" in at[50], "1" in at[50]] == [False, True]
    assert ["2" in at[30], "1" in at[30]] == [False, False]
    assert all("a" * 20 in drawn for drawn in at.values())


def test_sheet_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Sheet("t", "a", "b").add("1")


@pytest.mark.parametrize("width", [14, 20, 40])
def test_layout_text_breaks_after_commas_only(width: int) -> None:
    written = "attn_dp=2,dcp=8,ep=16,vocab_tp=8"
    lines = [line.strip() for line in text(Keys(written), width).splitlines()]
    assert "".join(lines) == written
    assert all(line.endswith(",") for line in lines[:-1])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (12, "12"), (1234567, "1,234,567"), (0.0, "0"), (70.0, "70"), (123.6, "124"), (4480.2, "4,480")],
)
def test_number(value: float | None, expected: str) -> None:
    assert number(value) == expected


def test_groups_are_in_reading_order() -> None:
    lines = [{"group": group, "bytes": 1} for group in ("reserve", "new", "kv", "weights", "kv")]
    assert by_group(lines) == {"weights": 1, "kv": 2, "reserve": 1, "new": 1}
    assert list(by_group(lines)) == ["weights", "kv", "reserve", "new"]


@pytest.mark.parametrize("document", ALL, ids=lambda document: document["schema"])
def test_every_document_has_a_picture(document: Document, tmp_path: pathlib.Path) -> None:
    written = save(document, tmp_path)
    assert written
    for path in written:
        assert path.parent == tmp_path
        assert path.read_bytes().startswith(b"\x89PNG")


def test_timeline_shows_the_wait() -> None:
    figure = drawn_figure(timeline, COST)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        waits = [bar for bar in axes.collections if bar.get_facecolor()[0] == pytest.approx(_rgba(WAIT))]
        spans = [(box.x0, box.x1) for bar in waits for box in [bar.get_paths()[0].get_extents()]]
        assert spans == [pytest.approx((2.0, 3.0))]  # ms


def test_memory_bars_add_up_to_what_is_free() -> None:
    axes = drawn_figure(memory_bars, MEMORY).axes[0]
    assert sum(widths(axes)) == pytest.approx(157.5)
    assert np.asarray(axes.lines[0].get_path().vertices)[0, 0] == pytest.approx(MEMORY["free_bytes"] / GIB)


def test_a_pool_that_is_short_is_no_bar_to_the_left() -> None:
    document = copy.deepcopy(MEMORY)
    document["lines"][5]["bytes"] *= -1
    assert min(widths(drawn_figure(memory_bars, document).axes[0])) >= 0


def test_candidates_are_points_and_the_best_a_star() -> None:
    axes = drawn_figure(candidates, PLAN).axes[0]
    points = {tuple(point) for group in axes.collections for point in np.asarray(group.get_offsets()).tolist()}
    assert points == {(50.0, 42.992), (80.0, 51.1), (90.0, 1.0)}


def widths(axes: Axes) -> list[float]:
    """Of the bars of a picture."""
    return [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]


def _rgba(colour: str) -> tuple[float, ...]:
    return (*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)), 1.0)
