"""`meshwright run` as people call it: on the devices that are here, on simulated ones, over two processes."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

from explorer.cli import main
from explorer.report.run import verdict
from explorer.running import Checked
from tests.layouts.decoding import DECODERS

ROOT = pathlib.Path(__file__).parents[2]
RUN = ["run", "--scale", "tiny", "--tokens", "4", "--prompt-tokens", "6"]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """What `run --json` prints in this process, which has 16 devices."""
    assert main([*RUN, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_layout_is_run_and_held_against_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "--model", "glm-5.2-nvfp4", "--layout", "pp=2,attn_dp=2,ep=8", "--verify-width", "3", "--check"
    )
    assert found["schema"] == "run/1"
    assert found["check"]["passes"]
    assert found["check"]["same_text"]
    assert 0 < found["check"]["error"] < 2e-5
    assert [len(text) for text in found["text"]["tokens"]] == [4] * 4
    assert found["text"]["drafted"] >= found["text"]["kept"]
    assert 0 < found["step_ms"]["low"] <= found["step_ms"]["median"] <= found["step_ms"]["high"]
    assert found["predicted_ms"] is None
    assert found["devices"]["count"] == 16
    assert found["request"]["layers"] == 7  # until every kind of layer has appeared
    assert found["request"]["experts"] == 16


def test_the_same_seed_gives_the_same_text_under_another_layout(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        document(capsys, "--model", "qwen3-30b-a3b-fp8", "--gpus", gpus, "--requests", each, "--layout", layout)["text"]
        for gpus, each, layout in (("8", "1", "attn_dp=4,attn_tp=2,ep=8"), ("2", "2", "attn_dp=2,expert_tp=2"))
    ]
    assert sorted(texts[0]["tokens"]) == sorted(texts[1]["tokens"])


def test_weights_come_from_a_folder_that_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--model", str(DECODERS / "llama"), "--layout", "attn_tp=4", "--gpus", "4", "--tokens", "3"]
    assert main([*arguments, "--check"]) == 0
    printed = capsys.readouterr().out
    assert "decoders/llama" in printed
    assert "one device: the same text" in printed


def test_a_prediction_stands_beside_the_step_for_a_known_chip(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys,
        "--model",
        "kimi-k3",
        "--layout",
        "attn_dp=2",
        "--gpus",
        "2",
        "--dtype",
        "bfloat16",
        "--hardware",
        "h200",
    )
    predicted = found["predicted_ms"]
    assert 0 < predicted["low"] <= predicted["likely"] <= predicted["high"]
    (note,) = found["notes"]
    curves = "the curves of h200@program; `meshwright measure` makes its own"
    assert note == f"the prediction is for this program, by {curves}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "kimi-k3", "--layout", "attn_dp=3"], "layout attn_dp=3"),
        (["--model", "kimi-k3", "--layout", "attn_dp=2", "--gpus", "17"], "gpus = 17"),
        (
            ["--model", "kimi-k3", "--layout", "attn_dp=16", "--scale", "huge"],
            "scale 'huge' is unknown: choose one of full, tiny",
        ),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--layers", "0"], "layers = 0"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--dtype", "fp8"], "dtype 'fp8' is unknown"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--context", "3"], "context = 3"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--requests", "0"], "requests = 0"),
        (["--model", "no-such", "--layout", "attn_dp=16"], "unknown model 'no-such'"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--hardware", "none"], "unknown hardware 'none'"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--simulate", "0"], "simulate = 0 is out of range"),
        (["--model", "kimi-k3", "--layout", "attn_dp=16", "--simulate", "2000"], "give 1 to 1024"),
        (["--model", "deepseek-v3", "--layout", "attn_dp=16", "--experts", "6"], "experts = 6 cannot be cut into 4"),
        (
            ["--model", "llama-3.1-8b", "--layout", "attn_dp=16", "--prompt-tokens", "5000"],
            "prompt-tokens 5000, tokens 4 and verify-width 1 need room for 5005 tokens and llama-3.1-8b has 4096",
        ),
        (
            ["--model", "llama-3.1-8b", "--layout", "attn_dp=16", "--scale", "full", "--requests", "4096"],
            "weights and caches need",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *arguments]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("deepseek-v3", "attn_dp=2,dcp=4,ep=16,vocab_tp=16"),  # experts and KV of one group lie in both
        ("llama-3.1-8b", "pp=2,attn_dp=8"),  # a stage each
    ],
)
def test_two_processes_run_one_layout(model: str, layout: str) -> None:
    """Eight simulated devices each. Only the first process prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "explorer.cli", *RUN, "--model", model, "--layout", layout]
    here = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    processes = [
        subprocess.Popen(
            [*command, "--simulate", "8", "--distributed", "--check", "--json"],
            cwd=ROOT,
            env={**here, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    (first, _), (second, _) = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    found = json.loads(first[first.index("{") :])  # the exchange between processes greets on stdout
    assert found["check"]["passes"]
    assert found["devices"]["count"] == 16
    assert "schema" not in second


def test_without_a_run_to_join_distributed_says_so() -> None:
    here = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "SLURM", "OMPI", "KUBERNETES"))}
    command = [sys.executable, "-m", "explorer.cli", *RUN, "--model", "llama-3.1-8b", "--layout", "attn_dp=1"]
    done = subprocess.run(
        [*command, "--simulate", "1", "--distributed"], cwd=ROOT, env=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--distributed found no run to join" in done.stderr
    assert "JAX_COORDINATOR_ADDRESS" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("platform", ["no-such", "cuda"])
def test_without_a_device_of_the_kind_asked_for_it_says_so(platform: str) -> None:
    """On a machine with a GPU the second one runs."""
    command = [sys.executable, "-m", "explorer.cli", *RUN, "--model", "llama-3.1-8b", "--layout", "attn_dp=1"]
    here = {**os.environ, "JAX_PLATFORMS": platform}
    done = subprocess.run([*command, "--gpus", "1"], cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("there is one here")
    assert done.returncode == 2
    assert "there is no device to run on" in done.stderr
    assert "Traceback" not in done.stderr


def test_weights_that_give_no_numbers_have_nothing_to_hold_against(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative epsilon: the root of less than nothing."""
    folder = pathlib.Path(shutil.copytree(DECODERS / "llama", tmp_path / "strange"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": -1e9}))
    arguments = ["run", "--model", str(folder), "--layout", "attn_tp=2", "--gpus", "2", "--tokens", "2", "--check"]
    assert main(arguments) == 2
    assert "on one device are not finite: check config.json and weights" in capsys.readouterr().err


def test_a_layout_that_gives_no_numbers_fails_its_check() -> None:
    """It says so in the document, which can hold none, and in the sheet."""
    assert not Checked(float("nan"), 1e-4, True).passes
    told = {"error": None, "bound": 1e-4, "same_text": False, "passes": False}
    assert str(verdict({"check": told})) == "one device: another text, logits not finite (bound 1e-04)"
    assert Checked(float("nan"), 1e-4, True).document()["error"] is None
