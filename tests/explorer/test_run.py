"""`meshwright run` as people call it: on the devices that are here, on simulated ones, over two processes."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from explorer.cli import main
from explorer.report.run import lines, prediction, verdict
from explorer.run_check import Checked, Logits, checked
from hw.measuring.flight import Times
from layouts.generation import Session
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


BFLOAT16 = ["--model", "qwen3-235b-a22b", "--layout", "attn_dp=2", "--gpus", "2", "--dtype", "bfloat16"]


def test_a_prediction_stands_beside_the_step_in_flight_for_a_known_chip(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16; some tokens of this text are beyond the bound, whose experts were chosen by a rounding."""
    times = Times(flight=2e-3, least=1.5e-3, most=3e-3, synced=4e-3, host=5e-4, steps=1)
    monkeypatch.setattr(Session, "timed", lambda session, width: times)
    found = document(capsys, *BFLOAT16, "--tokens", "16", "--prompt-tokens", "16", "--hardware", "h200", "--check")
    predicted = found["predicted_ms"]
    assert 0 < predicted["low"] <= predicted["likely"] <= predicted["high"]
    assert found["step_ms"] == pytest.approx({"median": 2.0, "low": 1.5, "high": 3.0, "waited": 4.0, "call": 0.5})
    said = dict(lines(found))
    assert said["step"] == "2.000 ms in flight (1.500 to 3.000 ms)"
    assert said["waited"] == "4.000 ms with a wait behind every step; a call takes the CPU 0.500 ms"
    assert said["predicted"].endswith(" ms): bound by its launch on the CPU")  # a tiny model's kernels take less
    assert prediction({**predicted, "on_host": False}).endswith(" ms)")
    (note,) = found["notes"]
    curves = "the curves of h200@program; `meshwright measure` makes its own"
    assert note == f"the prediction is for this program, by {curves}"
    check = found["check"]
    assert check["passes"] and not check["conditioned"] and check["tokens"] == 64
    assert check["typical"] < 1e-2 < check["bound"] == 5e-2


def test_a_program_that_leaves_out_a_sum_fails_its_check_in_bfloat16(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first rank of a group has in place of what all have together."""

    def only_the_first(summed: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def wrong(x: jax.Array, axes: Any, **options: Any) -> jax.Array:
            return summed(x * (jax.lax.axis_index(axes) == 0).astype(x.dtype), axes, **options)

        return wrong

    for name in ("psum", "psum_scatter"):
        monkeypatch.setattr(jax.lax, name, only_the_first(getattr(jax.lax, name)))
    layout = ["--model", "llama-3.1-8b", "--layout", "attn_tp=2", "--gpus", "2", "--dtype", "bfloat16"]
    assert main([*RUN, *layout, "--check"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "check failed, one device: another text" in printed
    assert "beyond the bound of 5e-01, to which a rounding" in printed or "beyond the bound of 5e-02" in printed


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


def logits(off: dict[tuple[int, int], float]) -> Logits:
    """Of two requests of four tokens, the largest of them 2, some tokens off by so much of it."""
    made = np.tile(np.array([2.0, 1.0, -1.0]), (2, 4, 1))
    for (request, token), by in off.items():
        made[request, token, 1] += 2 * by
    return made


def compare(off: dict[tuple[int, int], float], dtype: str, moved: float = 0.0, same: bool = True) -> Checked:
    every = {(request, token): moved for request in range(2) for token in range(4)}
    return checked(logits(off), logits({}), np.array(same), dtype, lambda: logits(every))


def told(check: Checked, dtype: str) -> str:
    return str(verdict({"check": check.document(), "request": {"dtype": dtype}}))


def test_in_float32_every_token_keeps_the_bound_and_the_text_is_the_same() -> None:
    right = compare({(1, 2): 5e-5}, "float32")
    assert right.passes and right.error == pytest.approx(5e-5)
    assert told(right, "float32") == (
        "one device: the same text, logits 5.0e-05 of the largest off, within the bound of 1e-04"
    )
    wrong = compare({(1, 2): 2e-4}, "float32")
    assert not wrong.passes and "check failed, one device: " in told(wrong, "float32")
    assert "beyond the bound of 1e-04" in told(wrong, "float32")
    assert not compare({}, "float32", same=False).passes


def test_in_bfloat16_half_of_the_tokens_of_every_request_keep_it() -> None:
    some = compare({(0, 1): 0.3, (0, 3): 0.2, (1, 0): 0.4}, "bfloat16", same=False)
    assert some.passes and (some.typical, some.beyond, some.tokens) == (0.0, 3, 8)
    assert told(some, "bfloat16").endswith("within the bound of 5e-02; 3 of 8 tokens up to 4.0e-01")
    most = compare({(1, token): 0.3 for token in range(3)}, "bfloat16", moved=0.01)
    assert not most.passes and most.typical == pytest.approx(0.3) and most.bound == 5e-2
    assert told(most, "bfloat16").startswith("check failed, one device: the same text, logits of half of each request")


def test_where_a_rounding_moves_one_device_as_far_it_is_the_bound_unless_nothing_can_be_told() -> None:
    off = {(request, token): 0.2 for request in range(2) for token in range(4)}
    assert compare(off, "bfloat16", moved=0.25).passes
    assert "to which a rounding of the weights moves one device" in told(compare(off, "bfloat16", 0.25), "bfloat16")
    assert not compare(off, "bfloat16", moved=0.15).passes
    assert not compare({at: 0.9 for at in off}, "bfloat16", moved=1.0).passes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layout_that_gives_no_numbers_fails_its_check(dtype: str) -> None:
    """One is enough. It says so in the document, which can hold none, and in the sheet."""
    found = compare({(0, 2): float("nan")}, dtype)
    assert not found.passes and found.document()["error"] is None
    assert told(found, dtype) == "check failed, one device: the same text, logits not finite"
