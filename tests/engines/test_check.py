"""What `check` says of a launch: lengths, findings, and that no advice would stop a server that starts."""

import functools

import pytest

from explorer.engines.check import Check, Served, check
from explorer.engines.check.findings import Finding, Kind, findings
from explorer.engines.command import read_launches
from explorer.engines.setup import Asked, setup_of
from explorer.engines.startup import Startup, startup

SGLANG = "python3 -m sglang.launch_server --model-path "
GIB = 2**30


@functools.cache
def started(command: str, hardware: str) -> Startup:
    (launch,) = read_launches(command)
    return startup(setup_of(launch, Asked(hardware, context=5120)))


def found(command: str, hardware: str, flag: str) -> Finding | None:
    return {finding.flag: finding for finding in findings(started(command, hardware))}.get(flag)


def checked(command: str, hardware: str, served: Served | None = None) -> Check:
    (launch,) = read_launches(command)
    return check(launch, Asked(hardware), served or Served(), advise=False)


# lengths


def test_lengths_that_are_left_out_fit_the_server():
    """vLLM's recipe of Kimi K2 on 16 GPUs takes 2,048 tokens: four fifths are prompt."""
    assert Served().tokens(163_840) == (4096, 1024)
    assert Served().tokens(2048) == (1639, 409)
    assert Served().tokens(2) == (1, 1)
    assert Served(input_tokens=3000).tokens(2048) == (3000, 1024)
    recipe = "vllm serve moonshotai/Kimi-K2-Instruct -tp 8 -pp 2 --max-model-len 2048 --max-num-seqs 1"
    fits = checked(recipe, "h200")
    assert (fits.served.input_tokens, fits.served.output_tokens) == (1639, 409)
    assert fits.unserved is None and len(fits.loads) == 1
    stated = checked(recipe, "h200", Served(4096, 1024))
    assert stated.unserved is not None and "2048" in stated.unserved and stated.loads == ()


# what is broken


def test_copies_of_experts_are_divided_with_the_others():
    """sglang#6017: 72 ranks decode DeepSeek-R1 with 32 copies: 288 experts, 4 a rank; 256 could not be divided."""
    large = (
        f"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 {SGLANG}deepseek-ai/DeepSeek-R1 --nnodes 9 --tp-size 72 "
        "--dp-size 72 --enable-dp-attention --disaggregation-mode decode --enable-deepep-moe --deepep-mode low_latency "
        "--cuda-graph-bs 256 --max-running-requests 18432 --mem-fraction-static 0.835"
    )
    (launch,) = read_launches(f"{large} --ep-num-redundant-experts 32")
    setup = setup_of(launch, Asked("h100"))
    assert setup.broken == ()
    assert (setup.layout.attn_dp, setup.layout.ep) == (72, 72)
    (launch,) = read_launches(large)
    assert any("ep = 72 does not divide the experts (256)" in rule for rule in setup_of(launch, Asked("h100")).broken)


def test_a_buffer_below_a_captured_step_breaks_a_rule():
    """The same launch without the variable: 128 rows a rank, steps of 256."""
    command = (
        f"{SGLANG}deepseek-ai/DeepSeek-R1 --tp 8 --attn-dp-size 8 --moe-a2a-backend deepep --deepep-mode low_latency "
        "--cuda-graph-max-bs-decode 256 --disaggregation-mode decode"
    )
    rules = checked(command, "h200").setup.broken
    assert any("256 rows" in rule and "=128" in rule for rule in rules)


# the share


@pytest.mark.parametrize(
    ("command", "hardware"),
    [
        (f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8", "h200"),
        (f"{SGLANG}meta-llama/Llama-3.1-8B", "h100"),
        (f"{SGLANG}openai/gpt-oss-120b --tp 4", "h100"),
        ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 4", "h100"),
        ("vllm serve meta-llama/Llama-3.1-8B", "h100"),
    ],
)
def test_defaults_are_no_waste(command, hardware):
    """On a server without attention DP the engines' own shares stand."""
    flags = [finding.flag for finding in findings(started(command, hardware))]
    assert "--mem-fraction-static" not in flags and "--gpu-memory-utilization" not in flags


def test_a_share_with_room_is_raised_with_care():
    """Kimi-K2-Thinking on 32 GPUs at 0.7 (sglang#24453): graphs took some 20 GB a rank there. What is advised leaves
    them room."""
    command = (
        f"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 {SGLANG}moonshotai/Kimi-K2-Thinking --tp 32 --dp 32 "
        "--enable-dp-attention --moe-a2a-backend deepep --mem-fraction-static 0.7 --cuda-graph-max-bs 128"
    )
    finding = found(command, "h200", "--mem-fraction-static")
    assert finding is not None and finding.kind is Kind.WASTE
    up = started(command, "h200")
    assert 0.75 < float(finding.change) < 0.85
    assert up.left - finding.frees > 20 * GIB
    assert finding.frees == int((float(finding.change) - 0.7) * up.free)
    assert finding.tokens == finding.frees // (61 * 576 * 2)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_no_share_is_advised_that_leaves_less_than_is_known_to_be_taken(engine, share):
    command = {
        "sglang": f"{SGLANG}meta-llama/Llama-3.1-8B --chunked-prefill-size 2048 --mem-fraction-static {share}",
        "vllm": f"vllm serve meta-llama/Llama-3.1-8B --max-num-batched-tokens 2048 --gpu-memory-utilization {share}",
    }[engine]
    flag = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}[engine]
    finding, up = found(command, "h200", flag), started(command, "h200")
    assert finding is not None and finding.kind is Kind.WASTE
    assert share + 0.02 <= float(finding.change) <= 0.95
    assert up.left - finding.frees > up.reserved_high + 4 * GIB


def test_what_leaves_too_little_is_a_risk_but_no_advice_goes_below_the_default():
    """vllm#21348: 0.93 on four H100. sglang#29092: the default there is about 0.83."""
    command = f"{SGLANG}Qwen/Qwen3-235B-A22B-FP8 --tp 4 --mem-fraction-static"
    finding = found(f"{command} 0.93", "h100", "--mem-fraction-static")
    assert finding is not None and finding.kind is Kind.RISK
    assert float(finding.change) == pytest.approx(started(f"{SGLANG}Qwen/Qwen3-235B-A22B-FP8 --tp 4", "h100").share)
    assert started(f"{command} {finding.change}", "h100").starts


def test_all_of_the_memory_is_a_risk():
    """vllm#13074: out of memory at a share of 1.00."""
    command = "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -pp 2 --gpu-memory-utilization 1.0 --max-model-len 32768"
    finding = found(command, "h20", "--gpu-memory-utilization")
    assert finding is not None and finding.kind is Kind.RISK
    assert 0.92 <= float(finding.change) < 1.0


# requests


def test_a_limit_of_sglang_is_shared_by_groups_but_not_by_replicas():
    """DP workers of a dense model are replicas, each with the whole limit; groups of attention DP share it."""
    replicas = f"{SGLANG}meta-llama/Llama-3.1-8B --dp 8 --max-running-requests 1024"
    finding = found(replicas, "h100", "--max-running-requests")
    up = started(replicas, "h100")
    assert finding is not None and finding.change == f"{up.running:,}"
    assert "asks for 1,024 requests an attention group" in finding.says
    groups = f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8 --attn-dp-size 8 --max-running-requests 8192"
    finding = found(groups, "h200", "--max-running-requests")
    up = started(groups, "h200")
    assert finding is not None and finding.change == f"{8 * up.running:,}"
    assert "asks for 1,024 requests" in finding.says


def test_a_limit_of_vllm_is_that_of_each_group():
    command = "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel --max-num-seqs 900"
    finding = found(command, "h200", "--max-num-seqs")
    assert finding is not None and "asks for 900 requests" in finding.says
    assert finding.change == f"{started(command, 'h200').running:,}"


def test_a_length_that_the_pool_cannot_hold_is_told():
    finding = found(f"{SGLANG}moonshotai/Kimi-K2-Instruct --tp 8", "h200", "--context-length")
    up = started(f"{SGLANG}moonshotai/Kimi-K2-Instruct --tp 8", "h200")
    assert finding is not None and finding.kind is Kind.LIMIT
    assert finding.change == f"{up.kv_tokens:,}"


# graphs and buffers


def test_graphs_above_the_limit_are_waste_in_sglang_alone():
    """vLLM's graphs run batches of prompts as well: 2,048 is what InferenceX captures for 512 requests."""
    command = f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8 --max-running-requests 16 --cuda-graph-max-bs-decode 64"
    finding = found(command, "h200", "--cuda-graph-max-bs-decode")
    assert finding is not None and (finding.kind, finding.change) == (Kind.WASTE, "16")
    command = "vllm serve openai/gpt-oss-120b -tp 2 --max-num-seqs 512 --cudagraph-capture-sizes 2048"
    assert found(command, "b200", "--max-cudagraph-capture-size") is None


def test_a_buffer_above_the_most_that_are_admitted_is_waste():
    """DeepSeek-V3: 256 experts of 7,168 values; the buffer of 128 rows is 1.78 GiB, that of 32 a quarter of it less a
    few bytes a row that do not count. Below what is admitted nothing is said."""
    command = (
        f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8 --attn-dp-size 8 --moe-a2a-backend deepep --mem-fraction-static 0.85 "
        "--cuda-graph-max-bs-decode 32 --max-running-requests"
    )
    name = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    finding = found(f"{command} 256", "h200", name)
    assert finding is not None and (finding.kind, finding.change) == (Kind.WASTE, "32")
    assert finding.frees / GIB == pytest.approx(1.78 * 96 / 128, abs=0.005)
    assert found(f"{command} 1024", "h200", name) is None


# states


def test_a_ratio_of_states_is_told_where_it_binds_alone():
    """Qwen3.5: with its own limit of 48 unmet, slots bind; with a limit of 8 neither pool matters."""
    command = f"{SGLANG}Qwen/Qwen3.5-397B-A17B-FP8 --tp-size 8 --mem-fraction-static 0.8"
    assert found(command, "h100", "--mamba-full-memory-ratio") is not None
    assert found(f"{command} --max-running-requests 8", "h100", "--mamba-full-memory-ratio") is None
