"""Options of XLA's compiler: this XLA knows every one, each says why, and platforms keep theirs to themselves."""

import pathlib
import tomllib

import jax
import jax.numpy as jnp
import pytest

import layouts.decoder.options as options

LINES = tomllib.loads(pathlib.Path(options.__file__).with_name("options.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("platform", LINES)
def test_xla_knows_every_option(platform):
    """XLA parses the options of all platforms wherever it compiles, and refuses names and values that it lacks."""
    found = dict(options.compiler_options(platform))
    assert len(found) == len(LINES[platform])
    for name, value in found.items():
        assert jax.jit(jnp.negative, compiler_options={name: value})(jnp.float32(2)) == -2


def test_xla_refuses_what_it_does_not_know():
    for name, value in (("xla_gpu_no_such_option", True), ("xla_gpu_enable_command_buffer", "NO_SUCH")):
        with pytest.raises(Exception, match=r"No such compile option|not a valid enum value"):
            jax.jit(jnp.negative, compiler_options={name: value})(jnp.float32(2))


@pytest.mark.parametrize("platform", LINES)
def test_every_option_is_of_its_platform_and_says_why(platform):
    for line in LINES[platform]:
        assert line.keys() == {"option", "value", "reason"} and line["reason"]
        assert line["option"].startswith(f"xla_{platform}_")


def test_a_platform_without_options():
    assert not options.compiler_options("cpu") and not options.compiler_options("tpu")
