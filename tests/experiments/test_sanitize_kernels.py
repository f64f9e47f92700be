"""Every kernel is run with arrays apart, and what a tool says of it is counted."""

import json
import pathlib
import sys
from typing import Any

import pytest

from experiments import sanitize_kernels as sanitize


@pytest.fixture
def tool(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A tool that keeps what it is asked, and says what the test wrote beside it."""
    script = tmp_path / sanitize.SANITIZER
    script.write_text(f"""#!{sys.executable}
import json, os, pathlib, sys
folder = pathlib.Path({str(tmp_path)!r})
(folder / "asked.json").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
print((folder / "said").read_text())
sys.exit(int((folder / "status").read_text()))
""")
    script.chmod(0o755)
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: str(script))
    says(tmp_path, "========= ERROR SUMMARY: 0 errors", 0)
    return tmp_path


def says(folder: pathlib.Path, text: str, status: int) -> None:
    (folder / "said").write_text(text)
    (folder / "status").write_text(str(status))


def test_every_array_is_an_allocation_with_a_gap_behind_it(tool: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the shell says of JAX's memory. A gap is an option of memcheck alone."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1")
    for name in sanitize.TOOLS:
        assert sanitize.sanitized(name, "kda")["errors"] == 0
        command, environment = json.loads((tool / "asked.json").read_text())
        assert environment["XLA_PYTHON_CLIENT_ALLOCATOR"] == "platform"
        assert environment["XLA_FLAGS"] == "--xla_one=1 --xla_gpu_autotune_level=0"
        assert command[:2] == ["--tool", name] and command[-2:][0] == "-c" and "KERNELS['kda']" in command[-1]
        assert (command[2:4] == ["--padding", str(1 << 20)]) == (name == "memcheck")


@pytest.mark.parametrize(
    ("said", "status", "errors"),
    [
        ("========= ERROR SUMMARY: 3 errors", 0, 3),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)", 0, 2),
        ("========= ERROR SUMMARY: 0 errors", 124, None),  # given up after its time
        ("Traceback", 0, None),
    ],
)
def test_errors_are_counted_and_what_did_not_end_has_no_number(
    tool: pathlib.Path, said: str, status: int, errors: int | None
) -> None:
    says(tool, f"========= COMPUTE-SANITIZER\n========= Invalid read\n{said}", status)
    row = sanitize.sanitized("racecheck", "mla")
    assert row["errors"] == errors
    assert "========= Invalid read" in row["lines"]


def test_without_the_tool_nothing_is_started(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: None)
    monkeypatch.setattr(sanitize.pathlib.Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(sanitize.subprocess, "run", lambda *_, **__: started.append(1))
    with pytest.raises(sanitize.NoSanitizerError, match=r"compute-sanitizer is not on the PATH .* install the CUDA"):
        sanitize.measure(tmp_path / "out.json")
    assert not started and not (tmp_path / "out.json").exists()


def test_stored_results_are_of_every_tool_and_kernel_with_an_allocation_for_each_array() -> None:
    document = json.loads(sanitize.RESULTS.read_text(encoding="utf-8"))
    assert document["memory"] == sanitize.ALONE and document["gap_bytes"] == sanitize.GAP
    found = {(row["tool"], row["kernel"]): row["errors"] for row in document["found"]}
    assert found == {(tool, kernel): 0 for tool in sanitize.TOOLS for kernel in sanitize.KERNELS}
