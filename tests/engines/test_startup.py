"""Start-up against public logs and rules worked by hand."""

import pytest

from explorer.engines.command import read_launches
from explorer.engines.setup import Asked, setup_of
from explorer.engines.startup import Given, Startup, startup
from layouts.serving.requests import Clamp

GIB = 2**30
V3 = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 "


def start(command: str, hardware: str = "h200", given: Given | None = None, **asked) -> Startup:
    setup = setup_of(read_launches(command)[0], Asked(hardware, **asked))
    assert not setup.broken
    return startup(setup, given or Given())


def test_states_first_then_kv_as_sglang_logs_it() -> None:
    """Case A8: K3 over TP8 with fp8 KV, the default ratio 0.9: 257 slots, 0.46 + 13.04 GiB, 1,167,552 tokens in 15.03
    GiB, 51 requests (257 // 5). The budget is what both pools take: 28.53 GiB, less what rounding of both hides."""
    command = "python -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
    up = start(command, "b300", Given(budget=int(28.533 * GIB)))
    assert up.state_slots == 257
    assert up.parts.state is not None
    assert round(258 * up.parts.state.conv / GIB, 2) == 0.46
    assert round(258 * up.parts.state.recurrent / GIB, 2) == 13.04
    assert up.parts.token == 24 * 576
    assert up.kv_tokens == pytest.approx(1_167_552, rel=1e-3)
    assert (up.admitted, up.slots_a_request) == (51, 5)


def test_kv_of_two_matrices() -> None:
    """Case A22: Qwen3-235B over TP4: 48,128 B a token of a rank, 367,404 tokens in 8.23 + 8.23 GiB."""
    up = start(
        "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-FP8 --tp 4",
        "h100",
        Given(pool=367_404 * 48_128),
    )
    assert up.parts.token == 48_128
    assert up.kv_tokens == 367_404
    assert round(up.kv_bytes / 2 / GIB, 2) == 8.23


def test_weights_of_redundant_experts() -> None:
    """Case A1: DeepSeek-V3 fp8 over DP8 with 32 redundant experts: 105.59 GiB on each of 8 GPUs."""
    command = (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention "
        "--enable-deepep-moe --moe-dense-tp-size 1 --ep-num-redundant-experts 32 --enable-dp-lm-head"
    )
    assert start(command).weights / GIB == pytest.approx(105.59, rel=0.01)
    assert start(command.replace(" --ep-num-redundant-experts 32", "")).weights / GIB == pytest.approx(95.8, rel=0.01)


def test_dense_layers_are_cut_over_all_of_tp_unless_told_otherwise() -> None:
    """Three dense layers of DeepSeek-V3: 3 x 18,432 x 7,168 parameters each, in fp8 with a float32 scale a block."""
    layer = 3 * 18_432 * 7_168
    whole = 3 * (layer + layer // 16_384 * 4)
    command = V3 + "--tp 8 --attn-dp-size 8"
    assert start(command + " --moe-dense-tp-size 1").weights - start(command).weights == whole - whole // 8


def test_an_embedding_is_whole_in_every_attention_group() -> None:
    """129,280 x 7,168 in bf16: 1.726 GiB on each rank under DP8; the head goes with --enable-dp-lm-head."""
    command = V3 + "--tp 8 --attn-dp-size 8"
    whole = 129_280 * 7_168 * 2
    assert start(command + " --enable-dp-lm-head").weights - start(command).weights == whole - whole // 8


def test_latent_kv_is_not_cut_by_tp_but_by_dcp() -> None:
    plain = start("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --page-size 64")
    cut = start(
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --page-size 64 --dcp-size 8"
    )
    assert plain.parts.token == cut.parts.token == 61 * 576 * 2
    assert plain.kv_tokens % 64 == 0
    assert cut.group_tokens == 8 * cut.kv_tokens


def test_requests_are_clamped_by_what_is_least() -> None:
    command = V3 + "--tp 8 --attn-dp-size 8 --max-running-requests 64"
    up = start(command, context=4096)
    assert (up.running, up.clamp, up.running_instance) == (8, Clamp.MAX_RUNNING, 64)
    up = start(command.replace("64", "4096"), context=32_768)
    assert (up.running, up.clamp) == (up.kv_tokens // 32_768, Clamp.KV)
    assert up.running < 512


def test_weights_that_do_not_fit_are_refused_with_the_least_fraction() -> None:
    up = start("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 4", "h100")
    assert not up.starts
    assert up.refusal is not None
    assert "more GPUs" in up.refusal or "cut the model" in up.refusal


def test_vllm_blocks_and_what_its_log_says() -> None:
    """Case A24: Llama-3.1-8B: 131,072 B a token; 1,952 blocks of 16 tokens in 3.81 GiB, 1.56 requests of 20,000."""
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 20000 --block-size 16"
    up = start(command, "h100", Given(budget=int(3.8125 * GIB)))
    assert up.parts.token == 131_072
    assert up.kv_bytes // (16 * 131_072) == 1952
    assert up.logged_concurrency == pytest.approx(1.56, abs=0.005)
    refused = start(command.replace("20000", "29000"), "h100", Given(budget=int(2.89 * GIB)))
    assert not refused.starts
    assert refused.longest == pytest.approx(23_648, abs=32)
    assert "29000" in (refused.refusal or "")


def test_vllm_of_a_large_log() -> None:
    """A public start of Qwen3-235B-A22B-FP8 on four RTX PRO 6000: 27.85 GiB, 621,392 tokens, 18.96x of 32,768."""
    command = "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 4 --max-model-len 32768"
    up = start(command, "rtx-pro-6000", Given(budget=int(27.85 * GIB)))
    assert up.logged_tokens == pytest.approx(621_392, rel=5e-4)
    assert up.logged_concurrency == pytest.approx(18.96, abs=0.01)
    assert up.weights / GIB == pytest.approx(55.19, rel=0.01)


def test_windows_have_a_pool_of_their_own() -> None:
    """gpt-oss: 18 layers attend to everything, 18 to 128 tokens; two pools at the ratio of 0.8."""
    up = start("python -m sglang.launch_server --model-path openai/gpt-oss-120b --tp 1", "h100")
    token = 18 * 2 * 8 * 64 * 2
    assert up.parts.token == up.parts.window_token() == token
    assert up.window_bytes == pytest.approx(0.8 * up.kv_bytes, rel=1e-3)


def test_clones_of_the_shared_expert() -> None:
    """Case A2: DeepSeek-R1 over TP8 with eight clones of the shared expert among the routed ones: 81.66 GiB."""
    plain = start("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8")
    cloned = start("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8", shared_clones=8)
    expert = 3 * 2048 * 7168
    assert cloned.weights - plain.weights == 58 * 7 * (expert + expert // 16_384 * 4) // 8
    assert cloned.weights / GIB == pytest.approx(81.66, rel=0.01)


def test_graphs_switched_off_by_the_older_flag() -> None:
    assert not start(V3 + "--tp 8 --disable-cuda-graph").parts.setup.settings.pools.graphs


def test_a_chunk_whose_reserve_exceeds_the_gpu_is_a_refusal() -> None:
    """1.5 MiB for each of 131,072 tokens is more than an H200 has."""
    up = start(V3 + "--tp 8 --chunked-prefill-size 131072")
    assert not up.starts
    assert "lower the chunk" in (up.refusal or "")


def test_compressed_pools_of_sglang_by_hand() -> None:
    """DeepSeek-V4-Flash over TP8 for 8 requests: windows by the requests that may run, then what is left as tokens."""
    command = (
        "sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash --tp 8 --mem-fraction-static 0.85 "
        "--max-running-requests 8 --chunked-prefill-size 8192"
    )
    budget = 8 * GIB
    up = start(command, given=Given(budget=budget))
    slot = 43 * 585 + 8 / 256 * 21 * 4 * 640 * 4
    slots = -(-(8 * 768 + 2 * 8192 + 256 + 32 * 384) // 256) * 256
    states = 1408 * 20 * 1024 * 4
    token = 21 * (37_440 / 256 + 33) + 20 * 1728 / 256
    assert up.window_bytes == slots * slot + states
    assert up.kv_tokens == int((budget - states - slots * slot) / token) // 256 * 256
    assert up.kv_bytes == pytest.approx(up.kv_tokens * token, abs=1)
    assert up.running == 8
    by_ratio = start(f"{command} --swa-full-tokens-ratio 0.1", given=Given(budget=budget))
    assert by_ratio.kv_tokens == int((budget - states) / (token + 0.1 * slot)) // 256 * 256
    # without a limit the engine sets 256 of its own, whose windows alone take more than these 8 GiB
    unlimited = start(command.replace("--max-running-requests 8 ", ""), given=Given(budget=budget))
    assert unlimited.refusal is not None and "lower --max-running-requests" in unlimited.refusal


def test_compressed_blocks_of_vllm_by_hand() -> None:
    """Blocks of 1,002,240 B (vllm#54703). A request of 121,344 tokens with two steps of 8,192 in flight: 474 blocks of
    256 tokens; windows of 64 in two groups; states of 4 tokens (7 + 16,384 of them) and of 8 (127 + 16,384)."""
    command = (
        "vllm serve deepseek-ai/DeepSeek-V4-Flash-0731 --tensor-parallel-size 2 --max-model-len 121344 "
        "--max-num-batched-tokens 8192 --kv-cache-dtype fp8"
    )
    up = start(command, "h20", Given(pool=int(7.7 * GIB)))
    blocks = int(7.7 * GIB) // 1_002_240
    request = 474 + 2 * (-(-(127 + 16_384) // 64) + 1) + -(-(7 + 16_384) // 4) + 1 + -(-(127 + 16_384) // 8) + 1
    assert up.kv_bytes == blocks * 1_002_240
    assert up.logged_concurrency == pytest.approx(blocks / request, rel=1e-6)
    # case A21 says about 150,000 for this command, of a build of summer 2026
    assert up.logged_tokens == pytest.approx(150_000, rel=0.07)
