"""`python -m experiments.flag_tables WHEEL_OR_FOLDER [--write]`: the table of an engine's flags from its sources."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from experiments.flag_tables import sglang, vllm
from experiments.flag_tables.sources import Sources
from hw.errors import MeshwrightError

TABLES: Final = pathlib.Path(__file__).parents[2] / "explorer" / "engines" / "flags"
_READERS: Final[Mapping[str, Callable[[Sources], dict[str, dict[str, Any]]]]] = {
    sglang.PACKAGE: sglang.read,
    vllm.PACKAGE: vllm.read,
}
_READ_FROM: Final = {
    sglang.PACKAGE: "sglang/srt/arg_groups/fields/*.py and sglang/srt/server_args.py (ServerArgs.add_cli_args)",
    vllm.PACKAGE: "vllm/engine/arg_utils.py (EngineArgs.add_cli_args) and vllm/entrypoints/common/cli_args.py",
}


def tables(place: pathlib.Path) -> dict[str, tuple[str, dict[str, dict[str, Any]]]]:
    """Version and flags of each engine whose sources are in a wheel, or in a folder of packages and wheels."""
    made: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {}
    for package, reader in _READERS.items():
        for root in _roots(place, package):
            sources = Sources(root, package)
            made[package] = (sources.version(), reader(sources))
    if not made:
        raise MeshwrightError(f"{str(place)!r} holds no engine: give a wheel of sglang or vllm, or its folder unpacked")
    return made


def _roots(place: pathlib.Path, package: str) -> list[pathlib.Path]:
    if place.is_file():
        return [place] if place.name.startswith(f"{package}-") else []
    if (place / package / "__init__.py").is_file():
        return [place]
    return sorted(place.glob(f"{package}-*.whl"))[-1:]


def written(package: str, version: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table's text."""
    lines = [
        f"# Flags of {package} {version}: made by `python -m experiments.flag_tables`, not by hand.",
        f'version = "{version}"',
        f"source = {json.dumps(_READ_FROM[package])}",
    ]
    for name in sorted(rows):
        lines += ["", f"[flags.{name}]"]
        lines += [f"{key} = {_plain(value)}" for key, value in rows[name].items()]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    """A value in TOML: JSON's spelling serves for words, numbers, truth and lists."""
    if isinstance(value, list):
        line = ", ".join(map(_plain, value))
        return f"[{line}]"
    return json.dumps(value, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """Print what would be written, or write it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.flag_tables")
    parser.add_argument("place", type=pathlib.Path, help="a wheel, or a folder of unpacked packages or wheels")
    parser.add_argument("--write", action="store_true", help="replace the tables of explorer/engines/flags")
    given = parser.parse_args(arguments)
    for package, (version, rows) in tables(given.place).items():
        text = written(package, version, rows)
        if given.write:
            (TABLES / f"{package}.toml").write_text(text, encoding="utf-8")
        print(f"{package} {version}: {len(rows)} flags" if given.write else text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
