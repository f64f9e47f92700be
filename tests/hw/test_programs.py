"""Compiled programs kept between processes."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.compat import compilation_cache_folder
from hw.programs import kept


@pytest.fixture
def folder(tmp_path: pathlib.Path):
    before = compilation_cache_folder()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def _counted():
    traces = []

    def function(scale: str, x: dict) -> dict:
        traces.append(scale)
        return {"y": jnp.sin(x["a"]) * len(scale), "z": (x["a"] + x["b"],)}

    return function, traces


def test_a_program_is_traced_once_and_read_back(folder: pathlib.Path) -> None:
    function, traces = _counted()
    x = {"a": np.arange(4.0, dtype=np.float32), "b": np.ones(4, np.float32)}
    first, again = kept({})(function), kept({})(function)  # the second stands for another process
    for run in (first, first, again, again):
        result = run("xx", x)
        assert np.allclose(result["y"], 2 * np.sin(x["a"]), atol=1e-6) and np.allclose(result["z"][0], x["a"] + 1)
    assert traces == ["xx"]
    assert len(list((folder / "programs").glob("*.bin"))) == 1


def test_static_values_and_shapes_make_programs_of_their_own(folder: pathlib.Path) -> None:
    function, traces = _counted()
    run = kept({})(function)
    for scale, size in (("x", 2), ("xx", 2), ("x", 3)):
        ones = np.ones(size, np.float32)
        assert run(scale, {"a": ones, "b": ones})["y"].shape == (size,)
    assert len(traces) == 3


def test_a_damaged_file_costs_time_and_not_the_answer(folder: pathlib.Path) -> None:
    function, traces = _counted()
    x = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    kept({})(function)("x", x)
    (path,) = (folder / "programs").glob("*.bin")
    path.write_bytes(path.read_bytes()[:100])
    assert np.allclose(kept({})(function)("x", x)["z"][0], 2.0)
    assert len(traces) == 2


def test_an_unwritable_folder_costs_time_and_not_the_answer(tmp_path: pathlib.Path) -> None:
    before = compilation_cache_folder()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    jax.config.update("jax_compilation_cache_dir", str(blocked))
    try:
        function, _ = _counted()
        ones = np.ones(2, np.float32)
        assert np.allclose(kept({})(function)("x", {"a": ones, "b": ones})["z"][0], 2.0)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
