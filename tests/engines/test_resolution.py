"""What an engine makes of a command before it loads: default shares, limits, refusals, vLLM's printed capacity."""

import pytest

from explorer.engines.command import read_launches
from explorer.engines.setup import Asked, Setup, setup_of
from explorer.engines.startup import Startup, startup

SGLANG = "python3 -m sglang.launch_server --model-path "
MIB = 2**20


def setup(command: str, hardware: str) -> Setup:
    (launch,) = read_launches(command)
    return setup_of(launch, Asked(hardware, context=5120))


def started(command: str, hardware: str) -> Startup:
    return startup(setup(command, hardware))


# The default share of SGLang: (memory - reserve) / memory, in MiB of reserve by cause (0.5.23, memory_hook.py)


@pytest.mark.parametrize(
    ("command", "hardware", "memory", "reserve"),
    [
        # 512 + 1.5 x 8192 + 1024 for 8 ranks + 2 x 512 graphs + 1536 for prefill graphs of MLA
        ("deepseek-ai/DeepSeek-V3 --tp 8", "h200", 143_771, 512 + 12_288 + 1024 + 1024 + 1536),
        # captures only up to the limit of requests of the whole server
        ("deepseek-ai/DeepSeek-V3 --tp 8 --max-running-requests 64", "h200", 143_771, 512 + 12_288 + 1024 + 128 + 1536),
        # attention DP: 3 x 512 x 8 more, and half as much again above 300 requests
        (
            "deepseek-ai/DeepSeek-V3 --tp 8 --attn-dp-size 8",
            "h200",
            143_771,
            512 + 12_288 + 1024 + 1024 + 1536 + 12_288 + 6144,
        ),
        # without graphs for prompts; decode graphs up to 24
        (
            "deepseek-ai/DeepSeek-V3 --tp 16 --cuda-graph-max-bs-decode 24 --disable-prefill-cuda-graph",
            "h200",
            143_771,
            512 + 12_288 + 2048 + 48,
        ),
        # a floor of 10 GiB on large chips: 512 + 3072 + 128 + 16 are less
        (
            "meta-llama/Llama-3.1-8B --chunked-prefill-size 2048 --cuda-graph-max-bs-decode 8 "
            "--disable-prefill-cuda-graph",
            "h100",
            81_559,
            10 * 1024,
        ),
        # a decode server computes no prompts: its rows are its requests, 2,048 at least; 2 GiB for DeepEP
        (
            "deepseek-ai/DeepSeek-V3 --tp 8 --attn-dp-size 8 --moe-a2a-backend deepep --disaggregation-mode decode "
            "--max-running-requests 512 --cuda-graph-max-bs-decode 64",
            "h200",
            143_771,
            512 + 3072 + 1024 + 128 + 3 * 64 * 8 + (10_240 - 512 - 3072 - 1024 - 128 - 1536) + 2048,
        ),
    ],
)
def test_default_shares_worked_by_hand(command, hardware, memory, reserve):
    up = started(SGLANG + command, hardware)
    assert up.share_source == "the engine's default"
    assert up.share == pytest.approx((memory - reserve) / memory, abs=6e-4)


def test_the_default_share_of_a_public_report():
    """sglang#29092, June 2026: 0.828 for Qwen3-32B on an H100, two digits of which a later version keeps."""
    assert started(f"{SGLANG}Qwen/Qwen3-32B", "h100").share == pytest.approx(0.828, abs=0.005)


def test_a_share_that_is_given_stands():
    up = started(f"{SGLANG}Qwen/Qwen3-32B --mem-fraction-static 0.7", "h100")
    assert (up.share, up.share_source) == (0.7, "--mem-fraction-static")
    assert started("vllm serve Qwen/Qwen3-32B", "h100").share == 0.92


# What vLLM prints is no capacity


@pytest.mark.parametrize(
    ("command", "hardware"),
    [
        ("vllm serve openai/gpt-oss-120b -tp 2", "h100"),
        ("vllm serve moonshotai/Kimi-K3 -tp 16 --max-model-len 100000", "b200"),
    ],
)
def test_a_printed_size_depends_on_the_longest_length_where_layers_differ(command, hardware):
    """vllm#51041: the size is the concurrency times the longest length; windows and states cost a request the same
    however long it is, so that shorter requests see fewer tokens of the same pool."""
    up = started(command, hardware)
    length = up.parts.setup.request.model.context_limit
    assert up.logged_tokens is not None and up.logged_concurrency is not None
    assert up.logged_tokens == pytest.approx(up.logged_concurrency * length, rel=1e-6)
    assert up.group_tokens < 0.9 * up.logged_tokens
    assert up.running <= up.group_tokens // 5120 + 1


def test_a_printed_size_is_the_pool_where_all_layers_are_alike():
    """Blocks of 16 tokens, and one that is never used."""
    up = started("vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192", "h100")
    assert up.logged_tokens is not None and abs(up.logged_tokens - up.group_tokens) <= 16


# Refusals and changes


def test_numbers_of_experts_that_no_machine_has():
    with pytest.raises(ValueError, match="redundant experts are no real number"):
        setup(f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8 --ep-num-redundant-experts {1 << 39}", "h200")


def test_what_is_changed_is_told():
    """A decode server runs without a prefix cache; DeepEP has as many ranks of experts as of TP; drafts bring a limit
    of 48 requests (SGLang 0.5.23)."""
    found = setup(
        f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8 --attn-dp-size 8 --moe-a2a-backend deepep "
        "--disaggregation-mode decode --speculative-algorithm NEXTN --speculative-num-steps 1 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
        "h200",
    )
    assert found.settings.pools.max_running == 48
    assert not found.settings.pools.prefix_cache
    assert found.layout.ep == 8
    assert any("max_running: None becomes 48" in note for note in found.notes)
    assert any("ep: 1 becomes 8" in note for note in found.notes)


def test_every_rule_that_is_broken_is_named():
    """14 ranks (sglang#2591) divide neither the heads nor the experts."""
    rules = setup(f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 14 --nnodes 2 --ep-size 14", "h100").broken
    assert len(rules) >= 2
    assert any("256" in rule for rule in rules) and any("128" in rule for rule in rules)
    assert all("\n" not in rule for rule in rules)
