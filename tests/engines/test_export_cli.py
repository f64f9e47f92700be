"""`meshwright export` on the command line: streams, files, and what it refuses."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

from explorer.cli import main
from explorer.engines.command import read_launch_file, read_launches
from explorer.engines.setup import Asked, setup_of
from layouts.models.presets import FOLDER

ASK = "export --model deepseek-v3 --hardware h200 --gpus 16 --concurrency 512 --layout attn_dp=16,ep=16"


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.smoke
def test_scripts_go_to_stdout_and_notes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Both hosts' scripts are one text that is read as two launches."""
    status, out, err = run(f"{ASK} --engine sglang", capsys)
    assert status == 0
    launches = read_launches(out)
    assert [launch.values["node_rank"] for launch in launches] == [0, 1]
    assert {(launch.values["tp_size"], launch.values["attn_dp_size"]) for launch in launches} == {(16, 16)}
    assert "note: weights are called DeepSeek-V3" in err


def test_a_shell_takes_the_scripts(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """bash runs each, with an engine that only prints the words it was given, and stops without the first address."""
    folder, engine = tmp_path / "out", tmp_path / "vllm"
    status, out, _ = run(f'{ASK} --engine vllm --model-path "/m/it\'s DeepSeek-V3" --out {folder}', capsys)
    assert (status, out) == (0, "")
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    engine.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = folder / "deepseek-v3-vllm-host1.sh"
    assert os.access(script, os.X_OK)
    missing = subprocess.run([script], env=env, capture_output=True, text=True)
    assert missing.returncode != 0 and "MASTER_ADDR" in missing.stderr
    given = subprocess.run([script], env={**env, "MASTER_ADDR": "10.0.0.7"}, capture_output=True, text=True)
    words = given.stdout.splitlines()
    assert words[:2] == ["serve", "/m/it's DeepSeek-V3"]
    assert words[words.index("--master-addr") + 1] == "10.0.0.7"
    assert words[-1] == "--headless"


def test_a_model_of_ones_own_lies_in_a_folder(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines want the folder, we are given the config.json in it; what is written reads back without any help."""
    config = tmp_path / "mine" / "config.json"
    config.parent.mkdir()
    shutil.copy(FOLDER / "llama-3.1-8b.json", config)
    ask = f"export --model {config} --hardware h200 --gpus 2 --layout attn_tp=2 --concurrency 6 --precision kv=fp8"
    status, out, _ = run(f"{ask} --engine sglang", capsys)
    (launch,) = read_launches(out)
    assert (status, launch.model) == (0, str(config.parent))
    setup = setup_of(launch, Asked("h200"))
    assert (setup.layout.attn_tp, setup.request.model.precision["kv"].name) == (2, "fp8")


def test_files_are_not_written_over(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{ASK} --engine sglang --format kubernetes --out {tmp_path}"
    file = tmp_path / "deepseek-v3-sglang.yaml"
    file.write_text("mine")
    status, out, err = run(command, capsys)
    assert (status, out, file.read_text()) == (2, "", "mine")
    assert "deepseek-v3-sglang.yaml is there already; give another folder, or --force" in err
    assert run(f"{command} --force", capsys)[0] == 0
    assert read_launch_file(file)[0].values["tp_size"] == 16


def test_a_document_holds_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(f"{ASK} --engine sglang --engine-version 0.5.7 --json", capsys)
    document = json.loads(out)
    assert (status, document["schema"], document["engine"]["version"]) == (0, "export/1", "0.5.7")
    assert "--enable-dp-attention --dp-size 16" in document["files"][0]["text"]
    assert "--cuda-graph-max-bs 32" in document["files"][0]["text"]


def test_pools_for_prompts_and_for_answers(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sets of files, of which each says its phase; prompts may have other GPUs and another layout."""
    apart = "--prefill-gpus 8 --prefill-layout attn_tp=8,ep=8,dispatch=all_gather"
    status, _, err = run(f"{ASK} --engine sglang --format kubernetes {apart} --out {tmp_path}", capsys)
    assert status == 0 and "router" in err
    launches = {file.name: read_launch_file(file)[0] for file in sorted(tmp_path.iterdir())}
    modes = {name: launch.values["disaggregation_mode"] for name, launch in launches.items()}
    assert modes == {"deepseek-v3-sglang-decode.yaml": "decode", "deepseek-v3-sglang-prefill.yaml": "prefill"}
    assert [launch.values["tp_size"] for launch in launches.values()] == [16, 8]


def test_a_plan_brings_its_requests(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a concurrency the plan's is written; a layout alone says none."""
    best = {"layout_text": "attn_tp=2", "concurrency": 40}
    monkeypatch.setattr("explorer.cli.export.planned", lambda request: {"best": best})
    ask = "export --model llama-3.1-8b --hardware h100 --gpus 2 --engine sglang --objective throughput"
    status, out, err = run(f"{ask} --json", capsys)
    document = json.loads(out)
    assert (status, document["settings"]["max_running"], document["layout"]["attn_tp"]) == (0, 40, 2)
    assert "the best that was found: attn_tp=2 at concurrency 40" in err
    status, _, err = run(f"{ask} --layout attn_tp=2", capsys)
    assert status == 2 and "--concurrency is missing" in err


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ("--engine trtllm", "engine 'trtllm' is none: choose one of sglang, vllm"),
        ("--engine sglang --format helm", "format 'helm' is none: choose one of script, kubernetes"),
        ("--engine sglang --role router", "role 'router' is none: choose one of unified, prefill, decode"),
        ("--engine sglang --role prefill", "role prefill with phase decode: ask for --phase prefill"),
        (
            "--engine sglang --engine-version 0.4",
            "SGLang '0.4' is no version whose flags are known: give one",
        ),
        ("--engine vllm --engine-version 0.11.0", "vLLM 0.11.0 has no --all2all-backend, which this layout"),
        ("--engine sglang --address 'a b'", "address 'a b' is no host"),
        ("--engine sglang --model-path -x", "model-path '-x' is no name or folder"),
        ("--engine sglang --out /dev/null/x", "cannot write there"),
    ],
)
def test_what_is_refused_is_one_line(options: str, mentions: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"{ASK} {options}", capsys)
    assert (status, out) == (2, "")
    assert mentions in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")
