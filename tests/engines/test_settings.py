"""What flags mean: degrees, pools and formats of commands in the wild, and the layouts that they make."""

import dataclasses

import pytest

from explorer.engines import sglang, vllm
from explorer.engines.command import CommandError, EngineName, Launch, read_launches
from explorer.engines.settings import Degrees, Pools, Settings, Speculation
from explorer.engines.setup import Asked, layout_keys, setup_of
from layouts.layout import Layout, resolve
from layouts.models import load_model
from layouts.serving.reserve import Role

pytestmark = pytest.mark.smoke
SGLANG = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 "
VLLM = "vllm serve deepseek-ai/DeepSeek-V3 "


def settings(command: str) -> Settings:
    (launch,) = read_launches(command)
    return (sglang if launch.engine is EngineName.SGLANG else vllm).read(launch)


def layout(command: str, model: str = "deepseek-v3") -> Layout:
    said, loaded = settings(command), load_model(model)
    return resolve(layout_keys(said, loaded), said.degrees.gpus, loaded)


# The same server in the words of before and after SGLang renamed attention DP, and what both mean.
DP8 = Layout(attn_dp=8, attn_tp=1, ep=8, vocab_tp=8, dispatch="all_to_all")


@pytest.mark.parametrize(
    "flags",
    [
        "--tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep",
        "--tp-size 8 --attn-dp-size 8 --moe-a2a-backend deepep",
        "--tensor-parallel-size 8 --data-parallel-size 8 --enable-dp-attention --enable-deepep-moe",
        "--tp 8 --attn-dp-size 8 --ep-size 2 --moe-a2a-backend mooncake",  # the exchange decides: ep = tp
    ],
)
def test_attention_dp_old_and_new(flags: str) -> None:
    assert layout(SGLANG + flags) == DP8


def test_dp_without_attention_dp_is_replicas() -> None:
    found = layout(SGLANG + "--tp 4 --dp-size 2")
    assert (found.replicas, found.attn_dp, found.attn_tp, found.gpus) == (2, 1, 4, 8)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--tp 16 --attn-dp-size 2 --dcp-size 4", {"attn_dp": 2, "attn_tp": 8, "dcp": 4, "dcp_backend": "a2a"}),
        ("--tp 8 --dcp-size 8 --dcp-comm-backend ag_rs", {"dcp": 8, "dcp_backend": "ag_rs"}),
        ("--tp 8 --ep-size 4", {"ep": 4, "expert_tp": 2, "dispatch": "all_gather"}),
        ("--tp 8 --ep-size 4 --moe-dp-size 2", {"ep": 4, "expert_tp": 1, "moe_dp": 2}),
        ("--tp 8 --pp-size 2", {"pp": 2, "attn_tp": 8}),
        ("--tp 8 --attn-dp-size 4 --enable-dp-lm-head", {"attn_tp": 2, "vocab_tp": 2}),
        ("--tp 8 --attn-dp-size 4", {"attn_tp": 2, "vocab_tp": 8}),
        ("--tp 8 --attn-dp-size 4 --disaggregation-mode prefill", {"padding": "sum_len"}),
        ("--tp 8 --attn-cp-size 4 --enable-prefill-cp --disaggregation-mode prefill", {"attn_cp": 4, "attn_tp": 2}),
    ],
)
def test_degrees_of_sglang(flags: str, expected: dict[str, int | str]) -> None:
    found = layout(SGLANG + flags)
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-tp 8", {"attn_tp": 8, "ep": 1, "expert_tp": 8, "dispatch": "all_gather"}),
        ("-tp 8 --enable-expert-parallel", {"attn_tp": 8, "ep": 8, "expert_tp": 1, "dispatch": "all_gather"}),
        ("-dp 8 --enable-expert-parallel", {"attn_dp": 8, "attn_tp": 1, "ep": 8, "vocab_tp": 1}),
        (
            "-dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency",
            {"attn_dp": 8, "ep": 8, "dispatch": "all_to_all"},
        ),
        ("-tp 2 -dp 4", {"attn_dp": 4, "attn_tp": 2, "ep": 1, "expert_tp": 8}),
        ("-tp 8 -dcp 4 --dcp-comm-backend a2a", {"dcp": 4, "dcp_backend": "a2a"}),
        ("-tp 8 -pp 2", {"pp": 2, "attn_tp": 8}),
    ],
)
def test_degrees_of_vllm(flags: str, expected: dict[str, int | str]) -> None:
    found = layout(VLLM + flags)
    assert {key: getattr(found, key) for key in expected} == expected


def test_data_parallel_ranks_of_a_dense_model_share_nothing() -> None:
    found = layout("vllm serve meta-llama/Llama-3.1-8B -tp 2 -dp 4", "llama-3.1-8b")
    assert (found.replicas, found.attn_dp, found.attn_tp) == (4, 1, 2)


def test_pools_of_sglang() -> None:
    text = (
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 " + SGLANG + "--tp 8 --mem-fraction-static 0.88 "
        "--max-running-requests 384 --context-length 131072 --page-size 64 --chunked-prefill-size 16384 "
        "--cuda-graph-bs 1 2 8 --disable-radix-cache --mamba-full-memory-ratio 1.5 --ep-num-redundant-experts 32 "
        "--kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16"
    )
    found = settings(text)
    assert found.pools == Pools(
        share=0.88, max_running=384, context_length=131072, page=64, chunk=16384, graph_sizes=(1, 2, 8),
        prefix_cache=False, state_ratio=1.5, dispatch_tokens=256, redundant_experts=32,
    )  # fmt: skip
    assert found.formats == {"kv": "fp8", "state": "bf16"}


def test_pools_of_vllm() -> None:
    found = settings(
        VLLM
        + "-tp 8 --gpu-memory-utilization 0.95 --max-num-seqs 256 --max-model-len 32k --max-num-batched-tokens 4096 "
        "--kv-cache-dtype fp8 --enforce-eager --no-enable-prefix-caching"
    )
    assert found.pools == Pools(
        share=0.95,
        max_running=256,
        context_length=32000,
        chunk=4096,
        graphs=False,
        prefix_cache=False,
        low_latency=False,
    )
    assert found.formats == {"kv": "fp8"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            SGLANG + "--tp 8 --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4",
            Speculation("EAGLE", 4),
        ),
        (SGLANG + "--tp 8 --speculative-algorithm NEXTN --speculative-num-steps 1", Speculation("NEXTN", 2)),
        (
            VLLM + """-tp 8 --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
            Speculation("MTP", 3),
        ),
        (SGLANG + "--tp 8", None),
    ],
)
def test_speculation(command: str, expected: Speculation | None) -> None:
    assert settings(command).speculation == expected


def test_roles() -> None:
    assert settings(SGLANG + "--tp 8 --disaggregation-mode decode").role is Role.DECODE
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'
    assert settings(VLLM + f"-tp 8 --kv-transfer-config '{config}'").role is Role.PREFILL


def test_what_is_not_modelled_is_named() -> None:
    said = settings(SGLANG + "--tp 8 --cpu-offload-gb 20 --enable-two-batch-overlap").unmodelled
    assert [line.split(":")[0] for line in said] == ["--cpu-offload-gb", "--enable-two-batch-overlap"]
    assert settings(SGLANG + "--tp 8 --cpu-offload-gb 0").unmodelled == ()


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"tp_size": 0}, "--tp-size"),
        ({"tp_size": -8}, "--tp-size"),
        ({"tp_size": 2.5}, "--tp-size"),
        ({"tp_size": "many"}, "--tp-size"),
        ({"page_size": "1.5"}, "--page-size"),
        ({"tp_size": True}, "--tp-size"),
        ({"mem_fraction_static": 1.5}, "--mem-fraction-static"),
        ({"mem_fraction_static": float("nan")}, "--mem-fraction-static"),
        ({"max_running_requests": 1 << 70}, "--max-running-requests"),
        ({"cuda_graph_bs_decode": (1, -2)}, "--cuda-graph-bs-decode"),
        ({"disable_radix_cache": "yes"}, "--disable-radix-cache"),
    ],
)
def test_impossible_values_name_their_flag(values: dict, flag: str) -> None:
    launch = Launch(EngineName.SGLANG, "deepseek-v3", values, {}, (), (), (), "here")
    with pytest.raises(CommandError, match=f"^{flag} "):
        sglang.read(launch)


def test_every_field_of_pools_is_read_from_some_flag() -> None:
    """A setting that no engine sets would be dead."""
    read = {"share", "graph_sizes", "graphs", "prefix_cache", "overlap_schedule", "state_strategy", "replay_state"}
    read |= {"dispatch_tokens", "low_latency", "exchange_buffer", "redundant_experts", "chunk", "kv_bytes"}
    read |= {"chunked_prefill"}
    read |= set(sglang.COUNTS) | set(sglang.NUMBERS) | set(vllm.COUNTS)
    assert {field.name for field in dataclasses.fields(Pools)} == read


def test_broken_rules_are_all_told() -> None:
    found = setup_of(read_launches(SGLANG + "--tp 12 --attn-dp-size 5")[0], Asked("h200"))
    assert any("12" in rule or "GPUs" in rule for rule in found.broken)
    found = setup_of(read_launches(SGLANG + "--tp 64 --attn-dp-size 8 --dcp-size 16")[0], Asked("h200"))
    assert any("dcp = 16 does not divide attn_tp = 8" in rule for rule in found.broken)


def test_degrees_count_gpus() -> None:
    assert Degrees(replicas=2, pp=2, tp=8).gpus == 32


def test_the_backend_of_older_vllm_is_in_the_environment() -> None:
    said = settings("VLLM_ALL2ALL_BACKEND=deepep_low_latency " + VLLM + "-dp 8 --enable-expert-parallel")
    assert said.degrees.exchange == "all_to_all"


def test_kernels_of_sparse_attention_decide_how_rows_of_fp8_look() -> None:
    command = SGLANG + "--tp 8 --kv-cache-dtype fp8_e4m3"
    assert settings(command).formats == {"kv": "fp8"}
    assert settings(command + " --dsa-decode-backend trtllm").formats == {"kv": "fp8_raw"}
