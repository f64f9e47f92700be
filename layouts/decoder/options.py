"""What XLA's compiler is told of a decode step, platform by platform: data in `options.toml`, a reason beside each."""

import functools
import pathlib
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Options = Mapping[str, bool | int | str]


@functools.cache
def compiler_options(platform: str) -> Options:
    """For `jit(compiler_options=...)` on devices of this platform (`jax.Device.platform`); none for one unknown."""
    return MappingProxyType({line["option"]: line["value"] for line in _lines().get(platform, ())})


@functools.cache
def _lines() -> Mapping[str, Any]:
    return tomllib.loads(pathlib.Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
