"""Flags of older versions: what they stand for now."""

import pytest

from explorer.engines.command import launch_of_server_info, read_launches


def test_dp_attention_counts_groups_inside_tp() -> None:
    """SGLang 0.5.23 srt/arg_groups/parallel_hook.py: --dp-size N --enable-dp-attention is --attn-dp-size N."""
    (launch,) = read_launches("sglang serve m --tp 16 --dp-size 8 --enable-dp-attention")
    assert launch.values == {"model_path": "m", "tp_size": 16, "attn_dp_size": 8}
    assert launch.replaced == (("--enable-dp-attention --dp-size 8", "--attn-dp-size 8"),)
    (launch,) = read_launches("sglang serve m --tp 16 --enable-dp-attention --dp 8")
    assert launch.values == {"model_path": "m", "tp_size": 16, "attn_dp_size": 8}
    # beside --attn-dp-size it says nothing, and --dp-size counts replicas
    (launch,) = read_launches("sglang serve m --tp 16 --dp-size 2 --attn-dp-size 8 --enable-dp-attention")
    assert launch.values == {"model_path": "m", "tp_size": 16, "dp_size": 2, "attn_dp_size": 8}
    assert launch.replaced == ()
    (launch,) = read_launches("sglang serve m --tp 16 --dp-size 2")
    assert launch.values["dp_size"] == 2


@pytest.mark.parametrize(
    ("written", "values", "write"),
    [
        ("--cuda-graph-max-bs 64", {"cuda_graph_max_bs_decode": 64}, "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-bs 1 2", {"cuda_graph_bs_decode": (1, 2)}, "--cuda-graph-bs-decode"),
        (
            "--disable-cuda-graph",
            {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"},
            "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
        ),
        ("--enable-deepep-moe", {"moe_a2a_backend": "deepep"}, "--moe-a2a-backend deepep"),
        ("--nsa-prefill-cp-mode in-seq-split", {"cp_strategy": "zigzag"}, "--cp-strategy"),
        ("--max-num-reqs 48", {"max_running_requests": 48}, "--max-running-requests"),
        (
            "--speculative-draft org/draft",
            {"speculative_draft_model_path": "org/draft"},
            "--speculative-draft-model-path",
        ),
    ],
)
def test_sglang(written: str, values: dict[str, object], write: str) -> None:
    (launch,) = read_launches(f"sglang serve m {written}")
    assert launch.values == {"model_path": "m", **values}
    assert launch.replaced == ((written.split()[0], write),)
    assert launch.unknown == launch.notes == ()


def test_ep_moe_is_as_wide_as_tp() -> None:
    (launch,) = read_launches("sglang serve m --enable-ep-moe --tp 8")
    assert launch.values == {"model_path": "m", "tp_size": 8, "ep_size": 8}
    assert launch.replaced == (("--enable-ep-moe", "--ep-size 8"),)


def test_vllm() -> None:
    (launch,) = read_launches(
        "vllm serve m --cuda-graph-sizes 1 2 --num-redundant-experts 32 --speculative-model d "
        "--num-speculative-tokens 3"
    )
    assert launch.values == {
        "model": "m",
        "cudagraph_capture_sizes": (1, 2),
        "eplb_config": {"num_redundant_experts": 32},
        "spec_model": "d",
        "spec_tokens": 3,
    }
    (launch,) = read_launches("vllm serve m --use-v2-block-manager --swap-space 16 --max-seq-len-to-capture 8192 -tp 2")
    assert launch.values == {"model": "m", "tensor_parallel_size": 2}
    assert [note.split()[0] for note in launch.notes] == [
        "--use-v2-block-manager",
        "--swap-space",
        "--max-seq-len-to-capture",
    ]


def test_server_info_of_older_versions() -> None:
    info = {"model_path": "m", "tp_size": 16, "dp_size": 16, "enable_dp_attention": True, "cuda_graph_max_bs": 128}
    launch = launch_of_server_info(
        {**info, "disable_cuda_graph": False, "internal_states": [{}], "kv_cache_dtype": None}
    )
    assert launch.values == {
        "model_path": "m",
        "tp_size": 16,
        "attn_dp_size": 16,
        "cuda_graph_max_bs_decode": 128,
    }
