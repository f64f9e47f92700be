"""The command line: what it refuses and how, what goes to which stream, what its options become."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from explorer.cli import main
from tests.explorer.bad_input import CASES, FILES, Bad

ROOT = pathlib.Path(__file__).parents[2]
ASK = "--model kimi-k3@article --hardware b200 --gpus 16 --context 100000 --concurrency 64"
DP2 = f"{ASK} --layout attn_dp=2,dcp=8,ep=16"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("input")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(shlex.split(command))
    streams = capsys.readouterr()
    return status, streams.out, streams.err


def shell(command: str) -> subprocess.CompletedProcess[str]:
    start = "import sys; from explorer.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", start, *shlex.split(command)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "100"},
    )  # fmt: skip


def is_one_error(err: str, mentions: str) -> None:
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert mentions.lower() in lines[0].lower()
    assert "Traceback" not in err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_one_line_and_status_2(
    case: Bad, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(case.arguments.format(folder=folder), capsys)
    assert status == 2
    assert out == ""
    is_one_error(err, case.mentions)


def test_cases_are_many_and_different() -> None:
    assert len(CASES) >= 40
    assert len({case.arguments for case in CASES}) == len({case.name for case in CASES}) == len(CASES)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["unknown model", "plot into a file"])
def test_bad_input_in_a_process_of_its_own(name: str, folder: pathlib.Path) -> None:
    case = next(case for case in CASES if case.name == name)
    done = shell(case.arguments.format(folder=folder))
    assert (done.returncode, done.stdout) == (2, "")
    is_one_error(done.stderr, case.mentions)


def test_control_characters_of_a_name_stay_in_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["plan", "--model", f"{tmp_path}/a\nb\x1b[31m.json", "--hardware", "b200", "--gpus", "8"])
    err = capsys.readouterr().err
    assert status == 2
    assert "\x1b" not in err
    is_one_error(err, "a b [31m.json")


def test_help_needs_no_jax() -> None:
    probe = "import sys; from explorer.cli import main; main(['plan', '--help']); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_help_names_every_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    asked = {"model", "draft", "precision", "hardware", "gpus", "gpus-per-host", "domain", "phase", "context"}
    asked |= {"concurrency", "verify-width", "accept-length", "objective", "max-tpot-ms", "mem-fraction", "seed"}
    for command in ("plan", "cost", "memory", "compare", "sensitivity"):
        status, out, _ = run(f"{command} --help", capsys)
        found = set(re.findall(r"--([a-z-]+)", out))
        own = set() if command == "plan" else {"layout"}
        assert status == 0
        assert asked | own | {"plot", "json", "extra-slots", "chunk"} <= found


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("", capsys)
    assert status == 2
    assert "plan" in out + err
    assert "error:" not in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("--version", capsys)
    assert (status, err) == (0, "")
    assert re.fullmatch(r"meshwright (\d+\.\d+\.\d+|\(not installed\))\n", out)


@pytest.mark.parametrize(("command", "expected"), [("models", "kimi-k3@article"), ("hardware", "gb200")])
def test_catalogues(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(command, capsys)
    assert (status, err) == (0, "")
    assert expected in out


@pytest.mark.parametrize(
    ("command", "schema"), [("cost", "cost/1"), ("memory", "memory/1"), ("sensitivity", "sensitivity/1")]
)
def test_json_is_one_document_alone_on_stdout(command: str, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"{command} {DP2} --json", capsys)
    document = json.loads(out, parse_constant=pytest.fail)
    assert status == 0
    assert document["schema"] == schema
    assert document["layout_text"] == "attn_dp=2,dcp=8,ep=16"
    assert document["notes"], "the model has notes"
    assert err.splitlines() == [f"note: {line}" for line in document["notes"]]


def test_options_reach_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "cost --model deepseek-v3 --draft mtp --precision kv=fp8 --hardware gb200 --gpus 16 --gpus-per-host 8 "
        "--domain 36 --phase decode --context 4000 --concurrency 12 --verify-width 3 --accept-length 1.5 --chunk 512 "
        "--objective throughput --max-tpot-ms 50 --mem-fraction 0.8 --extra-slots 2 --seed 7 --layout ep=16 --json"
    )
    document = json.loads(run(command, capsys)[1])
    asked = {
        "model": "deepseek-v3", "draft": "mtp", "hardware": "gb200", "gpus": 16, "gpus_per_host": 8, "domain": 36,
        "phase": "decode", "context": 4000, "concurrency": 12, "verify_width": 3, "accept_length": 1.5, "chunk": 512,
        "max_tpot_seconds": 0.05, "mem_fraction": 0.8, "extra_slots": 2, "seed": 7,
    }  # fmt: skip
    assert document["request"] == asked
    assert document["precision"]["kv"] == "fp8"
    assert document["objective"] == "throughput"


def test_tables_in_a_pipe_have_no_colour_codes() -> None:
    done = shell(f"memory {DP2}")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "note: " in done.stderr


def test_plot_writes_pictures_and_names_them(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "folder"
    status, _, err = run(f"cost {DP2} --plot {target}", capsys)
    assert status == 0
    picture = target / "timeline.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture}" in err


def test_interruption_is_130_and_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("explorer.request.make_request", interrupted)
    status, out, err = run(f"cost {DP2}", capsys)
    assert (status, out, err) == (130, "", "")


def test_reader_that_leaves_is_no_error() -> None:
    start = "import sys; from explorer.cli import main; sys.exit(main(['models']))"
    with subprocess.Popen(
        [sys.executable, "-c", start], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_one_line() -> None:
    start = "import sys; from explorer.cli import main; sys.exit(main(['hardware']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", start], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 2
    is_one_error(done.stderr, "could not be written")
