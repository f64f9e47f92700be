"""The shipped cases: what passes, by name what does not, and that the generated page is current.

Expected figures are those that practitioners published; none is of the code under test. Times are run by hand
(`python -m experiments.cases`): no bar is held on them.
"""

import json
import pathlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from explorer.cases.case import Case, CaseError, Figure, Kind, Server
from explorer.cases.quantities import QUANTITIES
from explorer.cases.reading import read_cases
from explorer.cases.run import HELD, PREFERRED, Result, passes, run_case, run_cases
from explorer.cli import main
from explorer.report.cases import counts, page

ROOT = pathlib.Path(__file__).parents[2]
CASES = read_cases(str(ROOT / "tests" / "cases"))
LISTED = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
IDS = (
    *(f"A{n}" for n in (1, 2, 4, 5, 6, 8, 10, 11, 13, 15, 16, 17, 19, 21, 22, 24, 25, 27, 28, 30, 32, 33, 35, 36, 38)),
    *("A39", "A41", "A42"),
    *(f"B{n}" for n in (1, 3, 4, 6, 7, 9, 10, 11, 13, 15, 16, 17, 19, 20, 21, 22, 23, 24)),
)
# The figures that fail, with the reason: 0.74 GiB more than the tensors that are known.
FAIL = {("A13", "weights_gib")}
# Cases none of whose figures has its inputs known.
UNKNOWN = {"A21", "A32", "A33", "A35", "A38", "B19"}
LAYOUT = ("B1", "B3", "B4", "B6", "B17")


@pytest.fixture(scope="module")
def results() -> tuple[Result, ...]:
    return run_cases([case for case in CASES if case.kind in (*HELD, Kind.CONFIGURATION)])


def test_every_report_has_a_file_with_its_source():
    assert [case.id for case in CASES] == list(IDS)
    assert all(case.source.startswith("https://") for case in CASES)


def test_what_passes(results: Sequence[Result]):
    failed = {(r.id, r.quantity) for r in results if r.passed is False}
    assert failed == FAIL
    scores = passes([r for r in results if r.kind in HELD])
    assert {name for name, score in scores.items() if score is None} == UNKNOWN
    known = [score for score in scores.values() if score is not None]
    assert sum(known) / len(known) >= 0.9


def test_every_layout_case_prefers_what_was_reported():
    """Of the page, since these are priced: reported and predicted are the same word, with the margin beside."""
    assert tuple(case.id for case in CASES if case.kind is Kind.LAYOUT) == LAYOUT
    rows = [line.split(" | ") for line in LISTED.splitlines() if "| preferred by " in line]
    assert len(rows) == sum(figure.quantity == PREFERRED for case in CASES for figure in case.figures) >= 5
    for row in rows:
        *_, reported, predicted, margin, passed = row
        assert reported == predicted and passed == "yes |" and margin.startswith("ahead by ")


def test_figures_with_unknown_inputs_say_which(results: Sequence[Result]):
    unknown = [r for r in results if r.passed is None]
    assert unknown and all((r.reason or "").startswith("inputs unknown: ") for r in unknown)


def test_tolerances_are_those_of_the_issue():
    per_mille = ("kv_gib", "kv_tokens", "kv_bytes_a_token", "state_gib", "conv_gib", "logged_tokens")
    assert {QUANTITIES[name].tolerance for name in per_mille} == {1e-3}
    assert QUANTITIES["weights_gib"].tolerance == 1e-2 and QUANTITIES["deepep_gib"].tolerance == 0
    clamps = ("running_requests", "state_slots", "requests_in_kv")
    assert all(QUANTITIES[name].absolute and QUANTITIES[name].tolerance == 1 for name in clamps)


def test_the_page_is_current(results: Sequence[Result]):
    written = set(LISTED.splitlines())
    rows = [line for line in page([r.document() for r in results]).splitlines() if line.startswith("| [")]
    assert rows and not [row for row in rows if row not in written]
    assert not [name for name in IDS if f"[{name}](" not in LISTED]


def test_json_keys(results: Sequence[Result]):
    document = results[0].document()
    keys = ["id", "kind", "quantity", "reported", "predicted", "error", "tolerance", "pass"]
    assert [key for key in document if key in keys] == keys


DEEPEP = {"dispatch_tokens": 256, "width": 7168, "experts": 256}


def made(figure: Figure, *servers: Server, kind: Kind = Kind.MEMORY) -> Result:
    named = {f"s{n}": server for n, server in enumerate(servers)}
    (result,) = run_case(Case("X1", kind, "t", "https://s", "", "", named, (figure,)))
    return result


@pytest.mark.parametrize(
    ("reported", "printed", "passed"),
    [
        (3.55, 0.01, True),
        (3.56, 0.01, False),
        (3.55, 0.0, False),
        (3.6, 0.1, True),
        (4.0, 1.0, True),
        (3.0, 1.0, False),
    ],
)
def test_exact_figures_may_differ_by_what_the_report_rounds(reported: float, printed: float, passed: bool):
    """3.5546 GiB: DeepEP's layout for 256 rows of DeepSeek-V3, a public figure (3.55)."""
    result = made(Figure("deepep_gib", reported, printed, DEEPEP))
    assert result.predicted == pytest.approx(3.5546, abs=1e-4)
    assert result.passed is passed


def test_clamps_may_differ_by_one():
    server = Server("sglang serve --model-path m --max-mamba-cache-size 44")
    for reported, passed in ((7, True), (8, True), (9, True), (6, False), (10, False)):
        result = made(Figure("running_requests", reported, given={"state_slots": 44}), server)
        assert (result.predicted, result.passed, result.error) == (8, passed, 8 - reported)


def test_words_must_agree():
    server = Server("sglang serve --model-path m")
    given = {"state_slots": 40, "kv_tokens": 1000}
    assert made(Figure("binding_clamp", "state_slots", given=given), server).passed
    assert made(Figure("binding_clamp", "kv_tokens", given=given), server).passed is False


def test_what_cannot_be_predicted_fails_and_says_why():
    result = made(Figure("weights_gib", 1.0), Server("sglang serve --model-path no-such-model"))
    assert (result.predicted, result.passed) == (None, False) and "no-such-model" in (result.reason or "")
    result = made(Figure("padded_rows", 1, given={"ranks": 2}))
    assert (result.passed, result.reason) == (
        False,
        "given.rank_tokens is missing: state tokens of the busiest rank of a step",
    )
    older = made(Figure("kv_tokens_older", 1), Server("sglang serve --model-path llama-3.1-8b"))
    assert older.reason == "llama-3.1-8b has no compressed attention: ask for kv_tokens"
    assert made(Figure("fits", True)).reason == "server is missing: write [server] with the command that ran"


def test_missing_inputs_hold_nothing():
    figure = Figure("deepep_gib", 99.0, 0.01, DEEPEP, missing="the width")
    result = made(figure)
    assert (result.passed, result.reason) == (None, "inputs unknown: the width")
    assert passes([result]) == {"X1": None}
    assert passes([result, replace(result, passed=True)]) == {"X1": True}
    assert passes([replace(result, passed=False), replace(result, passed=True), result]) == {"X1": False}


def test_unknown_quantities_are_errors():
    with pytest.raises(CaseError, match="case X1: quantity 'kv_gb' is unknown: choose one of weights_gib"):
        made(Figure("kv_gb", 1.0))
    with pytest.raises(CaseError, match="two or more names"):
        made(Figure(PREFERRED, "s0", by="tpot_ms", among=("s0",)), Server("sglang serve --model-path m"))


def test_preferred_and_ratios():
    """A group of two gets half the chunk: 4,096 and 8,192 tokens, from the rule of SGLang's `chunked_prefill_size`."""
    flags = "sglang serve --model-path m --tp 2 --chunked-prefill-size 8192"
    servers = Server(flags), Server(f"{flags} --dp 2 --enable-dp-attention")
    ratio = made(Figure("group_chunk", 0.5, of="s1", over="s0"), *servers)
    assert (ratio.predicted, ratio.passed, ratio.quantity) == (0.5, True, "group_chunk of s1 over s0")
    best = made(Figure(PREFERRED, "s1", among=("s0", "s1"), by="group_chunk"), *servers, kind=Kind.LAYOUT)
    assert (best.predicted, best.passed, best.margin) == ("s1", True, 1.0)  # the least; the other is twice as much
    rate = made(Figure(PREFERRED, "s1", among=("s0", "s1"), by="group_chunk"), servers[0], servers[0])
    assert (rate.predicted, rate.margin, ratio.margin) == ("s0", 0.0, None)


def test_clones_of_the_shared_expert_are_copies_of_it():
    """DeepSeek-V3 over TP8: seven more copies of 58 shared experts of 3 x 2,048 x 7,168 values, cut by eight."""
    server = Server("sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp 8")
    plain, cloned = (made(Figure("weights_gib", 80.0), s).predicted for s in (server, replace(server, shared_clones=8)))
    expert = 3 * 2048 * 7168
    assert isinstance(plain, float) and isinstance(cloned, float)
    assert (cloned - plain) * 2**30 == pytest.approx(58 * 7 * (expert + expert / 16_384 * 4) / 8, rel=1e-6)


def test_tokens_of_a_pool_by_the_ratio_beside_states():
    """K3 over TP8: 258 slots of 13.04 + 0.46 GiB at the ratio of 0.9 leave 15 GiB for tokens of 24 x 576 bytes."""
    server = Server("sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3", "b300")
    given = {"state_slots": 257, "tokens_a_request": 1000}
    found = made(Figure("requests_in_kv", 1165, given=given), server)
    assert found.predicted == pytest.approx((13.04 + 0.4584) / 0.9 * 2**30 / (24 * 576) / 1000, rel=1e-3)
    by_tokens = made(Figure("requests_in_kv", 1, given={"kv_tokens": 1_167_552, "tokens_a_request": 1000}), server)
    assert by_tokens.predicted == 1167


K3 = "sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
V3 = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 8"


@pytest.mark.parametrize(
    ("quantity", "command", "given", "expected"),
    [
        ("kv_bytes_a_token", V3, {}, 61 * 576 * 2),
        # what is left, less the tenth of what was free that is not the engine's
        ("budget_gib", f"{V3} --mem-fraction-static 0.9", {"free_gib": 100, "left_gib": 40}, 30.0),
        ("running_requests", f"{V3} --max-running-requests 16 --dp 2 --enable-dp-attention", {}, 8),
        # no limit is stated: 512 for each longest request that the pool holds, from 2,048 to 4,096
        ("running_requests", f"{V3} --context-length 100000", {"kv_tokens": 600_000}, 3072),
        ("requests_in_kv", f"{K3} --dcp-size 8", {"kv_tokens": 1000, "tokens_a_request": 100}, 80),
        # 18,636,800 bytes a row and 3,584 of counters: 1,843 rows stay below 2^31 - 1 words of 16 bytes
        ("dispatch_fits", V3, {"dispatch_tokens": 1843, "width": 5120, "experts": 448}, True),
        ("dispatch_fits", V3, {"dispatch_tokens": 1844, "width": 5120, "experts": 448}, False),
        ("valid", V3, {}, True),
        ("valid", V3.replace("8", "6"), {}, False),  # 128 heads are no multiple of 6
    ],
)
def test_quantities_by_hand(quantity: str, command: str, given: dict[str, float], expected: float):
    found = made(Figure(quantity, expected, given=given), Server(command)).predicted
    assert found == pytest.approx(expected) if isinstance(expected, float) else found == expected


def test_counts_are_of_cases(results: Sequence[Result]):
    rows = [r.document() for r in results]
    assert counts(rows)[-1].startswith("MEM + CAP + OOM: ") and " more unknown" in counts(rows)[-1]
    one = [row for row in rows if row["id"] in ("A8", "A13")]
    assert counts(one)[-1] == "CAP: 1 of 2 cases pass"


def test_the_command_prints_the_list(capsys: pytest.CaptureFixture[str]):
    folder = str(ROOT / "tests" / "cases")
    assert main(["cases", folder, "--only", "B20", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["id"], row["reported"], row["predicted"], row["pass"]) for row in rows] == [
        ("B20", 64, 64, True),
        ("B20", 0, 0, True),
        ("B20", 16, 16, True),
    ]
    assert main(["cases", folder, "--only", "B99"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no case 'B99' in the folder") and said.count("\n") == 1
