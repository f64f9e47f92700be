"""Packages that the project does without, where they are installed, and single files out of them."""

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from hw.errors import MeshwrightError


class NotInstalledError(MeshwrightError):
    """A package that a peer needs is not on this machine."""


def module(name: str) -> Any:
    """A module of an installed package. Raises `NotInstalledError` where it is not."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"{name}: {error.name} is not installed; install it to time this peer") from error


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """The version of each distribution that is installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def file_of(distribution: str, path: str, stand_ins: Mapping[str, Mapping[str, Any]]) -> Any:
    """The module in one file of a distribution whose other modules cannot all be imported here.

    `stand_ins`: the names that the file takes from each of them. Raises `NotInstalledError` without the distribution.
    """
    try:
        where = str(importlib.metadata.distribution(distribution).locate_file(path))
    except importlib.metadata.PackageNotFoundError as error:
        raise NotInstalledError(f"{distribution} is not installed; install it to time this peer") from error
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), where)
    if spec is None or spec.loader is None:
        raise NotInstalledError(f"{where} is no Python file; this peer knows {distribution} of another version")
    loaded = importlib.util.module_from_spec(spec)
    before = {name: sys.modules.get(name) for name in stand_ins}
    for name, values in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)
    try:
        spec.loader.exec_module(loaded)
    finally:
        for name, was in before.items():
            if was is None:
                del sys.modules[name]
            else:
                sys.modules[name] = was
    return loaded
