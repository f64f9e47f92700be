"""The door of every experiment that measures: what it needs is said in a line, before anything is made."""

import pathlib
import runpy
import sys
from types import SimpleNamespace
from typing import Any, Final

import jax
import pytest

from experiments.measured import TooFewGpusError, measure_or_show, need_gpus
from hw.errors import MeshwrightError

EXPERIMENTS: Final = pathlib.Path(__file__).parents[2] / "experiments"
# what measures with something else than GPUs, or as well without
ANYWHERE: Final = {"op_tables", "h200_trace"}


def measuring() -> list[pathlib.Path]:
    """Every experiment that has --measure."""
    found = (*EXPERIMENTS.glob("*.py"), *EXPERIMENTS.glob("*/__main__.py"))
    return sorted(p for p in found if "--measure" in p.read_text(encoding="utf-8") and p.stem != "measured")


def name_of(path: pathlib.Path) -> str:
    return path.parent.name if path.stem == "__main__" else path.stem


@pytest.fixture(autouse=True)
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the door is open although it must not be, a test fails before the memory of its machine is full."""

    def run(*_: Any, **__: Any) -> Any:
        raise AssertionError("a measurement was begun")

    for name in (
        "experiments.measured.here", "hw.measuring.copies.bandwidths", "experiments.h200_layouts.measure.measure",
        "explorer.running.run",
    ):  # fmt: skip
        monkeypatch.setattr(name, run)


def run(path: pathlib.Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit status of an experiment's command line; what it sets in the environment ends with the test."""
    monkeypatch.setattr(sys, "argv", [name_of(path), *arguments])
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return ended.value.code


def test_there_are_experiments_that_measure() -> None:
    assert {"bench_mla_decode", "bench_overlap", "sanitize_kernels", "peers", "h200_layouts", "h200_run"} <= {
        name_of(path) for path in measuring()
    }


@pytest.mark.parametrize("path", [p for p in measuring() if name_of(p) not in ANYWHERE], ids=name_of)
def test_without_a_gpu_nothing_is_made_and_one_line_says_why(
    path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "h200_layouts": ["--measure", "--file", str(tmp_path / "out.json")],
        "h200_run": ["--measure", "tiny", "--out", str(tmp_path)],
    }
    before = {id(array) for array in jax.live_arrays()}
    asked = arguments.get(name_of(path), ["--measure", str(tmp_path / "out.json")])
    assert run(path, asked, monkeypatch) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: measuring needs ") and said.err.count("\n") == 1 and "GPU" in said.err
    assert said.out == "" and not list(tmp_path.iterdir())
    assert not [array for array in jax.live_arrays() if id(array) not in before]


def test_a_trace_of_torch_says_that_torch_is_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert run(EXPERIMENTS / "h200_torch_trace.py", [str(tmp_path)], monkeypatch) == 2
    assert "torch is not installed" in capsys.readouterr().err


def test_as_many_gpus_are_needed_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu"), SimpleNamespace(platform="cpu")])
    need_gpus(1)
    with pytest.raises(TooFewGpusError, match="needs 2 GPUs, and a GPU can be used here: measure on a machine with 2"):
        need_gpus(2)
    need_gpus(2, there=2)

    def absent() -> Any:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", absent)
    with pytest.raises(TooFewGpusError, match="needs a GPU, and none can be used here"):
        need_gpus(1)


def test_what_a_measurement_refuses_is_a_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(sys, "argv", ["one", "--measure", str(tmp_path / "out.json")])
    asked: list[pathlib.Path] = []

    def measure(path: pathlib.Path) -> None:
        asked.append(path)
        raise MeshwrightError("a tool is missing: install it")

    with pytest.raises(SystemExit) as ended:
        measure_or_show("", tmp_path / "none", measure, lambda path: None)
    assert ended.value.code == 2 and capsys.readouterr().err == "error: a tool is missing: install it\n"
    with pytest.raises(SystemExit) as ended:
        measure_or_show("", tmp_path / "none", measure, lambda path: None, gpus=2)
    assert ended.value.code == 2 and asked == [tmp_path / "out.json"]
