"""Launch commands as people write them, against what the engines' parsers make of them."""

import pytest

from explorer.engines.command import CommandError, EngineName, Launch, read_launches


def only(text: str) -> Launch:
    launches = read_launches(text)
    assert len(launches) == 1
    return launches[0]


@pytest.mark.smoke
def test_sglang_command_over_several_lines() -> None:
    launch = only(
        "python3 -m sglang.launch_server --model-path org/model \\\n"
        "  --tp 8 --attn-dp-size=4 \\\n"
        "  --mem-fraction-static 0.88 --cuda-graph-bs-decode 1 2 4 --enable-dp-lm-head # the head too\n"
    )
    assert launch.engine is EngineName.SGLANG
    assert launch.model == "org/model"
    assert launch.values == {
        "model_path": "org/model",
        "tp_size": 8,
        "attn_dp_size": 4,
        "mem_fraction_static": 0.88,
        "cuda_graph_bs_decode": (1, 2, 4),
        "enable_dp_lm_head": True,
    }
    assert (launch.unknown, launch.replaced, launch.notes, launch.source) == ((), (), (), "command")


@pytest.mark.smoke
def test_vllm_command_with_its_shorthands() -> None:
    launch = only(
        "vllm serve org/model -tp 4 -dp=2 -O3 --max_model_len 128k --max-num-batched-tokens 8K "
        "--no-enable-prefix-caching --disable-log-requests --gpu-memory-utilization .9 -q fp8"
    )
    assert launch.engine is EngineName.VLLM
    # k is 1000 and K is 1024; --disable-x is the negation of --enable-x (vLLM 0.33.0 utils/argparse_utils.py)
    assert launch.values == {
        "model": "org/model",
        "tensor_parallel_size": 4,
        "data_parallel_size": 2,
        "optimization_level": 3,
        "max_model_len": 128_000,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "enable_log_requests": False,
        "gpu_memory_utilization": 0.9,
        "quantization": "fp8",
    }
    assert launch.unknown == launch.notes == ()


def test_dotted_keys_make_one_mapping() -> None:
    launch = only(
        "vllm serve m --compilation-config.mode 3 --compilation_config.pass_config.fuse_norm_quant true "
        "-cc.cudagraph_mode FULL --compilation-config.splitting_ops+ a,b"
    )
    assert launch.values["compilation_config"] == {
        "mode": 3,
        "pass_config": {"fuse_norm_quant": True},
        "cudagraph_mode": "FULL",
        "splitting_ops": ["a", "b"],
    }


def test_json_values() -> None:
    launch = only("""vllm serve m --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""")
    assert launch.values["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}
    launch = only("vllm serve m --speculative-config '{method: mtp}'")
    assert launch.values["speculative_config"] == "{method: mtp}"
    assert launch.notes == ("--speculative-config takes JSON, not '{method: mtp}'",)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("sglang serve org/model --tp-size 2", EngineName.SGLANG),
        ("sglang serve --model-type llm --model-path org/model --tp-size 2", EngineName.SGLANG),
        ("python -m vllm.entrypoints.openai.api_server --model org/model -tp 2", EngineName.VLLM),
        ("/opt/venv/bin/vllm serve org/model -tp 2 > log.txt 2>&1 &", EngineName.VLLM),
        ("cd /srv && nohup numactl -N 0 vllm serve org/model -tp 2 | tee log", EngineName.VLLM),
        ("uv run vllm serve org/model --tensor-parallel-size=2; echo done --tp 4", EngineName.VLLM),
        ("srun -N 1 --export=ALL bash -lc 'vllm serve org/model -tp 2'", EngineName.VLLM),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11 --model org/model -tp 2", EngineName.VLLM),
        (
            "docker run lmsysorg/sglang python3 -m sglang.launch_server --model org/model --tp 2",
            EngineName.SGLANG,
        ),
        ("torchrun sglang/python/sglang/launch_server.py --model-path org/model --tp 2", EngineName.SGLANG),
        ("$ vllm serve org/model -tp 2", EngineName.VLLM),
        ("vllm serve -tp 2 org/model --headless", EngineName.VLLM),
    ],
)
def test_wrappers(text: str, engine: EngineName) -> None:
    launch = only(text)
    assert launch.engine is engine
    assert launch.model == "org/model"
    size = {EngineName.SGLANG: "tp_size", EngineName.VLLM: "tensor_parallel_size"}[engine]
    assert launch.values[size] == 2
    assert launch.unknown == ()


def test_environment_and_variables() -> None:
    launch = only(
        "export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256\n"
        'TP=8; MODEL="org/my model"\nEXTRA="--dp-size 2 --enable-eplb"\n'
        'NCCL_DEBUG=INFO env CUDA_VISIBLE_DEVICES=0,1 sglang serve "$MODEL" --tp ${TP} --ep ${EP:-4} $EXTRA '
        "--served-model-name '$MODEL'"
    )
    assert launch.env == {
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "256",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert launch.values == {
        "model_path": "org/my model",
        "tp_size": 8,
        "ep_size": 4,
        "dp_size": 2,
        "enable_eplb": True,
        "served_model_name": "$MODEL",
    }
    docker = only("docker run -e VLLM_A=1 --env VLLM_B=2 --env=VLLM_C=3 vllm/vllm-openai --model m")
    assert docker.env == {"VLLM_A": "1", "VLLM_B": "2", "VLLM_C": "3"}


def test_unknown_variables_stay() -> None:
    launch = only("vllm serve $MODEL -tp $(nvidia-smi -L | wc -l) --seed `date +%s`")
    assert launch.model == "$MODEL"
    assert launch.values["tensor_parallel_size"] == "$(nvidia-smi -L | wc -l)"
    assert launch.values["seed"] == "`date +%s`"
    assert launch.notes[:3] == (
        "$MODEL is not expanded: nothing in the text assigns it",
        "$(nvidia-smi -L | wc -l) is not run: it stays as written",
        "`date +%s` is not run: it stays as written",
    )


def test_unknown_flags_are_named() -> None:
    launch = only("sglang serve m --tp-sise 4 --frobnicate a b --tp_size 2 --enable-d --dp-size 2")
    assert launch.unknown[0] == "--tp-sise (did you mean --tp-size?)"
    assert launch.unknown[1] == "--frobnicate"
    # SGLang's parser does not take underscores for dashes, vLLM's does
    assert launch.unknown[2] == "--tp_size (did you mean --tp-size?)"
    assert launch.unknown[3].startswith("--enable-d (could be --enable-")
    assert launch.values == {"model_path": "m", "dp_size": 2}


def test_argparse_abbreviations() -> None:
    launch = only("sglang serve m --mem-frac 0.8 --context-len 4096 --speculative-algo EAGLE")
    assert launch.values["mem_fraction_static"] == 0.8
    assert launch.values["context_length"] == 4096
    assert launch.values["speculative_algorithm"] == "EAGLE"


def test_wrong_values_are_kept_and_named() -> None:
    launch = only("sglang serve m --tp eight --load-balance-method best --dp-size --page-size -1 --tp 4 --tp 2")
    assert launch.values["tp_size"] == 2
    assert launch.values["page_size"] == -1
    assert "dp_size" not in launch.values
    notes = "\n".join(launch.notes)
    assert "--tp takes a whole number, not 'eight'" in notes
    assert "--load-balance-method takes one of auto, round_robin, " in notes
    assert "--dp-size has no value" in notes
    assert "second value wins: --tp given twice" in notes


def test_flags_alone() -> None:
    assert only("--tp 8 --mem-fraction-static 0.9").engine is EngineName.SGLANG
    assert only("--tensor-parallel-size 8 --gpu-memory-utilization 0.9").engine is EngineName.VLLM
    with pytest.raises(CommandError, match="are of both engines"):
        read_launches("--trust-remote-code")
    with pytest.raises(CommandError, match="starts no engine"):
        read_launches("--frobnicate")
    with pytest.raises(CommandError, match="starts no engine"):
        read_launches("ls -l | grep x")


def test_several_launches_in_order() -> None:
    prefill, decode = read_launches(
        "sglang serve m --disaggregation-mode prefill --tp 4 &\nsglang serve m --disaggregation-mode decode --tp 8\n"
    )
    assert (prefill.values["tp_size"], decode.values["tp_size"]) == (4, 8)


def test_here_documents_are_no_commands() -> None:
    launch = only("cat <<'EOF' > c.yaml\nvllm serve wrong it's\nEOF\nvllm serve right\n")
    assert launch.model == "right"
