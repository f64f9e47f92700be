"""Launches in files of every kind, and what engines say of their own arguments."""

import json
import pathlib

import pytest

from explorer.engines.command import (
    CommandError,
    EngineName,
    Launch,
    launch_of_server_args,
    launch_of_server_info,
    read_launch_file,
    read_launches,
)


def only(path: pathlib.Path, text: str) -> Launch:
    path.write_text(text, encoding="utf-8")
    launches = read_launch_file(path)
    assert len(launches) == 1
    return launches[0]


def test_script_says_on_which_line(tmp_path: pathlib.Path) -> None:
    launch = only(
        tmp_path / "run.sh", "#!/bin/bash\nset -e\nexport NCCL_DEBUG=WARN\n\nvllm serve m \\\n  -tp 8 | tee log\nwait\n"
    )
    assert launch.source == "line 5 of run.sh"
    assert launch.env == {"NCCL_DEBUG": "WARN"}
    assert launch.values == {"model": "m", "tensor_parallel_size": 8}


@pytest.mark.smoke
def test_command_overrules_its_configuration_file(tmp_path: pathlib.Path) -> None:
    """vLLM 0.33.0 _pull_args_from_config and SGLang 0.5.23 ConfigArgumentMerger: the file's words come first."""
    (tmp_path / "c.yaml").write_text(
        "model: from-file\ntensor-parallel-size: 4\nenable_prefix_caching: false\ncudagraph-capture-sizes: [1, 2]\n"
        "compilation-config:\n  pass_config: {fuse_norm_quant: true}\n"
    )
    launch = only(tmp_path / "run.sh", "vllm serve --config c.yaml -tp 8\n")
    assert launch.model == "from-file"
    assert launch.values["tensor_parallel_size"] == 8
    assert launch.values["enable_prefix_caching"] is False
    assert launch.values["cudagraph_capture_sizes"] == (1, 2)
    assert launch.values["compilation_config"] == {"pass_config": {"fuse_norm_quant": True}}
    assert launch.notes == ()
    (tmp_path / "s.yaml").write_text("model-path: m\ntp-size: 4\nenable-eplb: true\ndisable-radix-cache: false\n")
    (launch,) = read_launches("python -m sglang.launch_server --config=s.yaml --tp-size 2", folder=tmp_path)
    assert launch.values == {"model_path": "m", "tp_size": 2, "enable_eplb": True, "config": "s.yaml"}


def test_configuration_file_elsewhere_is_not_opened(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret.yaml").write_text("tp-size: 4\n")
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in ("../secret.yaml", str(tmp_path / "secret.yaml"), "missing.yaml"):
        (launch,) = read_launches(f"sglang serve m --config {name}", folder=inside)
        assert "tp_size" not in launch.values
        (note,) = launch.notes
        assert note.startswith(f"--config {name[:8]}") and note.endswith("is not read: it is not beside the command")
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (launch,) = read_launches("sglang serve m --config link.yaml", folder=inside)
    assert "tp_size" not in launch.values


def test_configuration_file_itself(tmp_path: pathlib.Path) -> None:
    launch = only(tmp_path / "c.yaml", "model-path: m\ntp-size: 8\nmem-fraction-static: 0.9\n")
    assert launch.engine is EngineName.SGLANG
    assert launch.values == {"model_path": "m", "tp_size": 8, "mem_fraction_static": 0.9}
    assert launch.source == "c.yaml"


def test_kubernetes_manifest(tmp_path: pathlib.Path) -> None:
    text = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: decode
        image: vllm/vllm-openai:v0.11.0
        env:
        - {name: TP, value: "8"}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
        args: ["--model", "m", "--tensor-parallel-size", "$(TP)"]
---
kind: Pod
spec:
  containers:
  - name: prefill
    image: lmsysorg/sglang
    command: ["/bin/bash", "-c"]
    args: ["exec python3 -m sglang.launch_server --model-path m --tp 4"]
"""
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    decode, prefill = read_launch_file(path)
    assert decode.values == {"model": "m", "tensor_parallel_size": 8}
    assert (decode.env, decode.source) == ({"TP": "8"}, "decode of pods.yaml")
    assert prefill.values == {"model_path": "m", "tp_size": 4}
    assert prefill.source == "prefill of pods.yaml"


def test_compose_file(tmp_path: pathlib.Path) -> None:
    text = """
services:
  llm:
    image: vllm/vllm-openai
    environment: [VLLM_USE_V1=1]
    command: --model m -tp 2 --max-num-seqs 64
"""
    launch = only(tmp_path / "compose.yml", text)
    assert launch.values == {"model": "m", "tensor_parallel_size": 2, "max_num_seqs": 64}
    assert launch.env == {"VLLM_USE_V1": "1"}


def test_dockerfile(tmp_path: pathlib.Path) -> None:
    text = (
        "# server\nFROM vllm/vllm-openai:latest\nENV VLLM_LOGGING_LEVEL=DEBUG\n"
        'CMD ["--model", "m", \\\n     "-tp", "2"]\n'
    )
    launch = only(tmp_path / "Dockerfile", text)
    assert launch.values == {"model": "m", "tensor_parallel_size": 2}
    assert launch.env == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    launch = only(tmp_path / "Dockerfile", "FROM x\nENTRYPOINT vllm serve m -tp 4\n")
    assert launch.values["tensor_parallel_size"] == 4


def test_server_info_and_benchmark_lines(tmp_path: pathlib.Path) -> None:
    info = {
        "model_path": "m",
        "tp_size": 8,
        "dp_size": 1,
        "attn_dp_size": 4,
        "enable_dp_attention": True,
        "fp8_gemm_runner_backend": "triton",
        "cuda_graph_bs_decode": [1, 2],
        "max_total_num_tokens": 12345,
        "version": "0.5.23",
    }
    launch = only(tmp_path / "info.json", json.dumps(info))
    assert launch.engine is EngineName.SGLANG
    assert launch.values == {
        "model_path": "m",
        "tp_size": 8,
        "dp_size": 1,
        "attn_dp_size": 4,
        "fp8_gemm_backend": "triton",
        "cuda_graph_bs_decode": (1, 2),
    }
    lines = "\n".join(json.dumps({"duration": n, "server_info": info}) for n in range(3))
    assert only(tmp_path / "bench.jsonl", lines).values == launch.values
    assert launch_of_server_info({"server_args": info}).values == launch.values
    with pytest.raises(CommandError, match="neither model_path"):
        launch_of_server_info({"a": 1})


def test_logged_server_args() -> None:
    launch = launch_of_server_args(
        "[2025-10-02 11:22:33] server_args=ServerArgs(model_path='org/m', tp_size=8, mem_fraction_static=0.84, "
        "max_running_requests=None, trust_remote_code=True, lora_paths=[], json_model_override_args='{\"a\": (1,)}', "
        "cuda_graph_bs=[1, 2, 4], dp_size=8, enable_dp_attention=True, custom=<object at 0x7f, x>, "
        "disable_cuda_graph=False)\n[2025-10-02] tp_size=3"
    )
    assert launch.values == {
        "model_path": "org/m",
        "tp_size": 8,
        "mem_fraction_static": 0.84,
        "trust_remote_code": True,
        "lora_paths": (),
        "json_model_override_args": '{"a": (1,)}',
        "cuda_graph_bs_decode": (1, 2, 4),
        "attn_dp_size": 8,
    }


def test_logged_vllm_arguments() -> None:
    launch = launch_of_server_args(
        "(APIServer pid=1) INFO 10-02 [utils.py:233] non-default args: {'model_tag': 'org/m', 'model': 'org/m', "
        "'tensor_parallel_size': 8, 'compilation_config': {'mode': <CompilationMode.VLLM_COMPILE: 3>}}"
    )
    assert launch.engine is EngineName.VLLM
    assert launch.values == {"model": "org/m", "tensor_parallel_size": 8, "compilation_config": {"mode": 3}}
    launch = launch_of_server_args(
        "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', speculative_config=None, "
        "dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=8, kv_cache_dtype=fp8, enforce_eager=False, "
        "observability_config=ObservabilityConfig(show=None, otlp=None), seed=0\nnext line, tensor_parallel_size=2"
    )
    assert launch.values["max_model_len"] == 131072
    assert launch.values["tensor_parallel_size"] == 8
    assert launch.values["dtype"] == "bfloat16"
    assert launch.values["kv_cache_dtype"] == "fp8"
    assert launch.values["enforce_eager"] is False
    assert "speculative_config" not in launch.values
    with pytest.raises(CommandError, match="logs no arguments"):
        launch_of_server_args("INFO: ready")
