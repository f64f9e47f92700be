"""A log beside the ledger: residuals and verdicts, worked by hand from published figures."""

import pathlib

import pytest

from explorer.engines.command import read_launches
from explorer.engines.logs.entries import Reading
from explorer.engines.logs.predicted import Predicted, exactly
from explorer.engines.logs.reading import read_log
from explorer.engines.logs.reconcile import Reconciled, Verdict, _judged, _merged, reconcile
from explorer.engines.setup import Asked, setup_of

GIB = 2**30
LOGS = pathlib.Path(__file__).with_name("logs")


def of(name: str, hardware: str, command: str | None = None, **asked) -> Reconciled:
    question = Asked(hardware, **asked)
    setup = None if command is None else setup_of(read_launches(command)[0], question)
    return reconcile(name, read_log(LOGS / f"{name}.log"), question, setup)


def judged(printed: float, low: float, middle: float, high: float) -> tuple[float | None, Verdict]:
    """Of a figure with two decimals; all in GiB."""
    estimate = Predicted(round(middle * GIB), round(low * GIB), round(high * GIB), "")
    residual, verdict = _judged(Reading(printed * GIB, 0.005 * GIB), estimate)
    return None if residual is None else round(residual / GIB, 6), verdict


@pytest.mark.parametrize(
    ("printed", "bounds", "expected"),
    [
        (10.57, (10.568, 10.568, 10.568), (0.0, Verdict.ROUNDING)),
        (10.57, (10.574, 10.574, 10.574), (0.0, Verdict.ROUNDING)),
        (10.57, (10.56, 10.56, 10.56), (0.01, Verdict.APART)),
        (10.57, (10.60, 10.60, 10.60), (-0.03, Verdict.APART)),
        (2.51, (0.1, 2.2, 3.1), (0.0, Verdict.RANGE)),
        (3.104, (0.1, 2.2, 3.1), (0.0, Verdict.RANGE)),  # 3.099 would be printed so as well
        (3.11, (0.1, 2.2, 3.1), (0.91, Verdict.APART)),
        (2.2, (0.1, 2.2, 3.1), (0.0, Verdict.ROUNDING)),
    ],
)
def test_residuals_are_what_rounding_and_range_leave(printed, bounds, expected):
    assert judged(printed, *bounds) == expected


def test_nothing_is_said_of_what_is_not_predicted():
    assert _judged(Reading(1.0), None) == (None, Verdict.NOT_PREDICTED)
    assert exactly(5, "x") == Predicted(5, 5, 5, "x")


@pytest.mark.smoke
def test_deepseek_v3_of_sglang_6017():
    """161,488 tokens of 61 x 576 x 2 B are 10.57 GiB. Weights of 105.59 GiB, with 32 copies of experts and dense MLPs
    that no rank shares: ours are within 1 %, which two decimals tell apart."""
    found = of(
        "sglang_0.4.6_dp8",
        "h200",
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention "
        "--enable-deepep-moe --ep-num-redundant-experts 32 --moe-dense-tp-size 1 "
        "--enable-dp-lm-head",
    )
    lines = {line.name: line for line in found.lines}
    assert found.why_not is None
    pool = lines["KV pool"]
    assert pool.predicted is not None and pool.predicted.bytes == 161_488 * 61 * 576 * 2
    assert (pool.residual, pool.verdict) == (0.0, Verdict.ROUNDING)
    weights = lines["weights"]
    assert weights.predicted is not None and weights.verdict is Verdict.APART
    assert weights.predicted.bytes / GIB == pytest.approx(105.59, rel=0.01)
    assert weights.residual == pytest.approx(weights.value - weights.predicted.bytes)


def test_the_rank_with_the_least_left_is_shown_beside_the_range_of_all():
    """Rank 0 has 137.55 GiB before the weights, the others 137.46."""
    found = of("sglang_0.4.6_dp8", "h200")
    before = found.lines[0]
    assert before.name == "before weights"
    assert str(found.rank) != "DP0 TP0"
    assert [before.value / GIB, before.low / GIB, before.high / GIB] == pytest.approx([137.46, 137.46, 137.55])


def test_states_of_the_article_by_their_slots():
    """33 slots of 69 layers of 96 x 128 x 128 fp32 values are 13.34 GiB, an eighth of 209 are 10.56; 24 x 576 B a token
    are 41.1 and 34.6 GiB."""
    launch = (
        "python -m sglang.launch_server --model-path kimi-k3@article --tp 16 --attn-dp-size {dp} {dcp} "
        "--moe-a2a-backend deepep --kv-cache-dtype fp8_e4m3"
    )
    for name, dp, dcp, heads in (("dp16", 16, "", 96), ("dp2", 2, "--dcp-size 8", 12)):
        found = of(f"sglang_2026-10_{name}", "b200", launch.format(dp=dp, dcp=dcp), draft="none")
        lines = {line.name: line for line in found.lines}
        slots = {"dp16": 33, "dp2": 209}[name]
        states = lines["SSM states"].predicted
        assert states is not None and states.bytes == slots * 69 * heads * 128 * 128 * 4
        assert lines["SSM states"].verdict is Verdict.ROUNDING
        assert lines["KV pool"].verdict is Verdict.ROUNDING


def test_counts_follow_from_the_free_memory_of_the_log():
    """137.46 GiB before and 31.87 after the weights leave 31.87 - 137.46 x (1 - f) for pools: at a fraction of 0.845
    that is 10.56 GiB, some 161,400 tokens of 70,272 B. By our own weights it would be more."""
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"
    found = of("sglang_0.4.6_dp8", "h200", f"{launch} --mem-fraction-static 0.845")
    (count,) = found.counts
    assert (count.name, count.logged) == ("KV tokens of a rank", 161_488)
    assert count.predicted is not None and count.predicted == pytest.approx(
        (31.87 - 137.46 * 0.155) * GIB / 70_272, abs=1.5
    )
    assert count.error == pytest.approx(count.predicted / 161_488 - 1)


def test_logs_without_arguments_say_so():
    found = of("vllm_2026-08_tp4", "rtx-pro-6000")
    assert found.setup is None
    assert found.why_not == "the log does not print its arguments: give the launch with --command"


def test_vllm_pool_is_told_apart_from_what_it_prints():
    """Qwen3-235B-A22B FP8 on four GPUs: 94 layers x 1 KV head x 128 x 2 x 2 B = 48,128 B a token; 27.85 GiB hold
    621,392 tokens, 18.96 requests of 32,768."""
    command = "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 4 --max-model-len 32768"
    found = of("vllm_2026-08_tp4", "rtx-pro-6000", command)
    counts = {count.name: count for count in found.counts}
    assert abs(621_392 * 48_128 / GIB - 27.85) < 0.005
    size, concurrency = counts["GPU KV cache size"], counts["maximum concurrency"]
    assert size.predicted is not None and size.predicted == pytest.approx(621_392, rel=2e-4)
    assert size.error == pytest.approx(size.predicted / 621_392 - 1)
    assert concurrency.predicted == pytest.approx(18.96, abs=0.006)


def test_rows_of_two_logs_are_merged_in_order():
    assert _merged(["a", "b", "d"], ["a", "c", "d", "e"]) == ["a", "c", "b", "d", "e"]
    assert _merged([], ["a", "b"]) == ["a", "b"]
    assert _merged(["a"], ["b", "a"]) == ["b", "a"]


def test_a_prefill_server_has_no_decode_graphs(tmp_path) -> None:
    file = tmp_path / "prefill.log"
    file.write_text(
        "[2026-10-01 10:00:00 TP0] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, "
        "disaggregation_mode='prefill', mem_fraction_static=0.85)\n"
        "[2026-10-01 10:00:01 TP0] Load weight begin. avail mem=138.00 GB\n"
        "[2026-10-01 10:00:03 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, "
        "avail mem=57.30 GB, mem usage=80.70 GB.\n"
    )
    found = reconcile("prefill.log", read_log(file), Asked("h200"))
    assert [line.name for line in found.lines] == ["before weights", "weights", "after weights"]
