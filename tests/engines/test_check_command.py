"""`meshwright check` on the command line: statuses, streams, and what means harm."""

import json
import pathlib
import subprocess
import sys
import time

import pytest

from explorer.cli import main

DEEPSEEK = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
LLAMA = "vllm serve meta-llama/Llama-3.1-8B -tp 2"
VLLM = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8"
HUGE = "9" * 31
MOST_SECONDS, MOST_KIB = 15, 1 << 20


def asked(capsys: pytest.CaptureFixture[str], command: str, *options: str, hardware: str = "h200"):
    status = main(["check", command, "--hardware", hardware, *options])
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.smoke
def test_a_document_or_tables(capsys):
    status, out, err = asked(capsys, LLAMA, "--json", "--concurrency", "4", "--no-advise")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert (document["schema"], document["layout_text"], document["starts"]) == ("check/1", "attn_dp=1", True)
    assert [load["concurrency"] for load in document["loads"]] == [1, 2, 4]
    status, out, err = asked(capsys, LLAMA, "--concurrency", "4", "--no-advise")
    assert (status, err) == (0, "")
    assert "One GPU after start-up" in out and "Better" not in out


def test_what_the_engine_would_not_take_is_an_answer(capsys):
    """A rule that is broken is what was asked about: it is told, and the command succeeds."""
    status, out, _ = asked(capsys, DEEPSEEK + " --ep-size 3", "--json")
    document = json.loads(out)
    assert (status, document["starts"], document["start"], document["loads"]) == (0, False, None, [])
    assert any("3" in rule for rule in document["broken"])


def test_unknown_flags_are_named(capsys):
    _, out, _ = asked(capsys, LLAMA + " --warp-drive 3 --max-model-length 4096", "--json", "--no-advise")
    unknown = json.loads(out)["command"]["unknown"]
    assert unknown[0] == "--warp-drive"
    assert unknown[1].startswith("--max-model-length (did you mean --max-model-len")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "starts no engine"),
        ("ls -l", "starts no engine"),
        ("/nonexistent/start.sh", "cannot be read"),
        ("/tmp", "is no file"),
        ("/dev/zero", "is no file"),
        ("vllm serve a\0b", "NUL"),
        ("vllm serve дом -tp 2 🦊", "unknown model"),
        ("vllm serve /dev/zero -tp 2", "is no file"),
        ("vllm serve 'm -tp 2", "never closed"),
        (f"{LLAMA} --max-model-len {HUGE}", "--max-model-len"),
        (f"vllm serve meta-llama/Llama-3.1-8B -tp {HUGE}", "--tensor-parallel-size"),
        ("vllm serve meta-llama/Llama-3.1-8B -tp 1000000", "gpus = 1000000"),
        (f"{DEEPSEEK} --dp {1 << 30}", "gpus ="),
        (f"{DEEPSEEK} --mem-fraction-static nan", "--mem-fraction-static"),
        (f"{DEEPSEEK} --ep-num-redundant-experts {1 << 39}", "redundant experts"),
        (f'{VLLM} --speculative-config \'{{"method": "mtp", "num_speculative_tokens": {1 << 40}}}\'', "verify-width"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(capsys, command, says):
    status, out, err = asked(capsys, command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and says in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "held", "says"),
    [
        ("junk.sh", b"vllm serve m\0\x01\xff" * 1000, "is binary"),
        ("latin.sh", b"vllm serve d\xe9j\xe0", "no UTF-8"),
        ("bomb.yaml", b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "anchor or alias"),
        ("large.log", None, "is larger than 16 MiB"),
    ],
)
def test_files_that_mean_harm(capsys, tmp_path, name, held, says):
    file = tmp_path / name
    if held is None:
        with file.open("wb") as made:
            made.truncate(100 << 20)
    else:
        file.write_bytes(held)
    status, out, err = asked(capsys, str(file))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_nothing_of_a_command_is_run(capsys, tmp_path):
    made = tmp_path / "made"
    command = f"touch {made}; {LLAMA} --seed $(touch {made}) --host `touch {made}` > {made} | tee {made}"
    status, _, _ = asked(capsys, command, "--json", "--no-advise")
    assert status == 0
    assert list(tmp_path.iterdir()) == []


def test_very_many_flags_in_bounded_time_and_memory(tmp_path):
    """Time grows with the flags, of which a file of the largest size holds some ten times as many."""
    file = tmp_path / "start.sh"
    file.write_text("vllm serve m" + "".join(f" --f{n % 9999} 1" for n in range(10**5)), encoding="utf-8")
    limit = (
        "import pathlib, re, sys; from explorer.cli import main; code = main(sys.argv[1:]); "
        "print(re.search('VmHWM:[^0-9]*([0-9]+)', pathlib.Path('/proc/self/status').read_text())[1]); sys.exit(code)"
    )
    arguments = [sys.executable, "-c", limit, "check", str(file), "--hardware", "h200"]
    start = time.monotonic()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, cwd=pathlib.Path(__file__).parents[2])
    assert time.monotonic() - start < MOST_SECONDS
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown model 'm'" in done.stderr
    assert int(done.stdout) < MOST_KIB
