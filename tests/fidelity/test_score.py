"""Sets and rows from runs and a predictor with known errors."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from explorer.fidelity.document import document
from explorer.fidelity.drawing import markdown
from explorer.fidelity.files import Loaded, Refusal
from explorer.fidelity.runs import Interval, Pool, Run
from explorer.fidelity.score import SetScore, score
from hw.errors import MeshwrightError

BASE = Run(
    *("a", "file", "m", "M", "chip"), engine="e", concurrency=8, pool=Pool(1, 8), input_tokens=1024, output_tokens=512
)


def run(run_id: str, tpot: float, ttft: float, **changes: object) -> Run:
    return replace(BASE, id=run_id, measured={"tpot": tpot, "ttft": ttft}, **changes)


def a_second(_: Run) -> Mapping[str, Interval]:
    return {"tpot": Interval(1.0, 0.5, 2.0), "ttft": Interval(1.0, 0.9, 1.1)}


def sets(runs: list[Run], predict=a_second, refused: tuple[Refusal, ...] = ()) -> dict[str, SetScore]:
    return {each.name: each for each in score(Loaded(tuple(runs), refused), predict).sets}


def test_sets_by_hand() -> None:
    """TPOT is predicted twice what was measured and then half of it; TTFT exactly, and at a quarter."""
    found = sets([run("a", 0.5, 1.0), run("b", 2.0, 4.0, concurrency=9, mode="disagg")])
    tpot, ttft, everything = found["tpot"], found["ttft"], found["all"]
    assert tpot.scores is not None and ttft.scores is not None and everything.scores is not None
    assert (tpot.n, tpot.scored, tpot.refused) == (2, 2, 0)
    assert (tpot.scores.mape, tpot.scores.bias, tpot.scores.coverage) == (0.75, 0.25, 1.0)
    assert (ttft.scores.mape, ttft.scores.bias, ttft.scores.coverage) == (0.375, -0.375, 0.5)
    assert (everything.n, everything.scores.mape) == (4, pytest.approx(0.5625))
    agg = found["tpot: agg"]
    assert agg.scores is not None and (agg.n, agg.scores.mape) == (1, 1.0)
    assert {"tpot: e", "tpot: chip", "tpot: m", "tpot: file", "tpot: disagg"} <= set(found)
    assert list(found)[:3] == ["tpot", "ttft", "all"]


def test_a_run_counts_once_in_a_set_whatever_its_file_is_called() -> None:
    found = sets([run("a", 1, 1, source="chip"), run("b", 1, 1, source="agg", concurrency=9)])
    assert (found["tpot: chip"].n, found["tpot: agg"].n) == (2, 2)


def test_ambiguous_runs_are_scored_apart() -> None:
    found = sets([run("a", 1, 1), run("b", 2, 3), run("c", 1, 1, concurrency=9)])
    assert {name: found[name].n for name in ("tpot", "ttft", "tpot ambiguous", "ttft ambiguous", "all")} == {
        "tpot": 1,
        "ttft": 1,
        "tpot ambiguous": 2,
        "ttft ambiguous": 2,
        "all": 6,
    }
    assert found["tpot: e"].n == 1
    assert list(found)[:5] == ["tpot", "ttft", "tpot ambiguous", "ttft ambiguous", "all"]


def test_noise_with_and_without_ambiguous_groups() -> None:
    runs = [run("a", 1, 1), run("b", 2, 3), run("c", 1, 1, concurrency=9), run("d", 1.02, 1, concurrency=9)]
    board = score(Loaded(tuple(runs)), a_second)
    assert (board.noise["tpot"].groups, board.quiet_noise["tpot"].groups, board.ambiguous) == (2, 1, 2)
    assert board.quiet_noise["tpot"].factor == pytest.approx(1.02)


def test_what_is_refused_is_counted_with_its_reason() -> None:
    def predict(asked: Run) -> Mapping[str, Interval]:
        if asked.concurrency == 8:
            raise MeshwrightError("no batch")
        if asked.concurrency == 10:
            return {"tpot": Interval(1, 1, math.inf), "ttft": Interval(1.0, 2.0, 1.0)}
        return {"tpot": Interval(1, 1, 1)}

    runs = [run("a", 1, 1), run("b", 1, 1, concurrency=9), run("c", 1, 1, concurrency=10)]
    board = score(Loaded(tuple(runs), (Refusal("z", ("tpot",), "isl is blank"),)), predict)
    found = {each.name: each for each in board.sets}
    assert (found["tpot"].n, found["tpot"].scored, found["tpot"].refused) == (4, 1, 3)
    assert (found["all"].n, found["all"].scored, found["all"].refused) == (7, 1, 6)
    assert found["ttft"].scores is None and found["ttft"].ranking is None
    reasons = {(row.id, row.quantity): row.refused for row in board.rows}
    assert reasons == {
        ("z", "tpot"): "isl is blank",
        ("a", "tpot"): "no batch",
        ("a", "ttft"): "no batch",
        ("b", "tpot"): None,
        ("b", "ttft"): "ttft is not predicted for this run",
        ("c", "tpot"): "the prediction of tpot is 1 in 1 to inf, which is no range",
        ("c", "ttft"): "the prediction of ttft is 1 in 2 to 1, which is no range",
    }


def test_a_bug_is_no_refusal() -> None:
    def broken(_: Run) -> Mapping[str, Interval]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sets([run("a", 1, 1)], broken)


def test_the_predictor_sees_no_figure() -> None:
    seen: list[Run] = []

    def predict(asked: Run) -> Mapping[str, Interval]:
        seen.append(asked)
        return a_second(asked)

    sets([run("a", 0.5, 1.0)], predict)
    assert set(seen[0].measured) == {"tpot", "ttft"}
    assert all(math.isnan(value) for value in seen[0].measured.values())
    assert seen[0].inputs == run("a", 0.5, 1.0).inputs


def by_tp(asked: Run) -> Mapping[str, Interval]:
    width = float((asked.pool or asked.pools[0]).tp or 1)
    return {name: Interval(width, width, width) for name in ("tpot", "ttft")}


@pytest.mark.parametrize(
    ("changes", "pairs"),
    [
        ({"pool": Pool(2, 4)}, 1),  # other layout, as many GPUs
        ({"pool": Pool(1, 4)}, 0),  # fewer GPUs
        ({"pool": Pool(2, 4), "concurrency": 9}, 0),
        ({"pool": Pool(2, 4), "input_tokens": 9}, 0),
        ({"pool": Pool(2, 4), "output_tokens": 9}, 0),
        ({"pool": Pool(2, 4), "model": "n"}, 0),
        ({"pool": Pool(2, 4), "hardware": "x"}, 0),
        ({"gemm": "fp8"}, 0),  # the same layout
    ],
)
def test_which_pairs_are_ranked(changes: dict[str, object], pairs: int) -> None:
    found = sets([run("a", 2, 2), run("b", 1, 5, **changes)], by_tp)
    assert (found["tpot"].pairs, found["ttft"].pairs) == (pairs, pairs)
    if pairs:  # TP 4 is predicted to be faster: so it was in TPOT, not in TTFT; TPOT is never ranked against TTFT
        assert (found["tpot"].ranking, found["ttft"].ranking, found["all"].ranking) == (1, 0, 0.5)
        assert found["all"].pairs == 2


def test_runs_on_unknown_numbers_of_gpus_are_not_ranked() -> None:
    runs = [
        run(name, tpot, 1, mode="disagg", pool=None, prefill=Pool(None, 8), decode=Pool(None, tp))
        for name, tpot, tp in (("a", 1, 8), ("b", 2, 4))
    ]
    assert sets(runs)["tpot unstated"].pairs == 0


def test_the_document_is_json_and_says_everything() -> None:
    runs = [run("a", 0.5, 1.0), run("a2", 0.5, 1.0), run("b", 1, 1, concurrency=9, repaired="why")]
    found = document(score(Loaded(tuple(runs), (Refusal("z", ("tpot",), "isl is blank"),)), a_second))
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    assert found["duplicates"] == {"repeated": 1, "restated": 0}
    assert found["repaired"] == 1
    assert [(row["id"], row["set"]) for row in found["rows"]] == [
        ("z", "tpot"),
        ("a", "tpot"),
        ("a", "ttft"),
        ("b", "tpot"),
        ("b", "ttft"),
    ]
    assert found["rows"][1] == {
        "id": "a",
        "set": "tpot",
        "quantity": "tpot",
        "measured": 0.5,
        "predicted": 1.0,
        "low": 0.5,
        "high": 2.0,
        "error": 1.0,
        "refused": None,
        "repaired": None,
    }
    assert found["sets"][0] == {
        "name": "tpot",
        "n": 3,
        "scored": 2,
        "refused": 1,
        "mape": 0.5,
        "median": 0.5,
        "bias": 0.5,
        "p90": pytest.approx(0.9),
        "coverage": 1.0,
        "ranking": None,
        "pairs": 0,
    }


def test_rare_reasons_are_summed_up() -> None:
    """14 reasons, one of which holds for two rows: twelve are listed, the other two are counted."""

    def predict(asked: Run) -> Mapping[str, Interval]:
        raise MeshwrightError(f"reason {min(asked.concurrency or 0, 14)}")

    runs = [replace(run(str(n), 1, 1, concurrency=n), measured={"tpot": 1.0}) for n in range(1, 16)]
    text = markdown(document(score(Loaded(tuple(runs)), predict)))
    assert "| 2 | reason 14 |" in text
    assert "| 2 | 2 other reasons (see --json) |" in text
    assert sum(line.startswith("| 1 | reason") for line in text.splitlines()) == 11
