"""Our tables of flags against the engines' own sources.

MESHWRIGHT_ENGINE_WHEELS names a folder that holds the packages `sglang` and `vllm` unpacked, or their wheels.
"""

import os
import pathlib
import re

import pytest

from experiments.flag_tables.__main__ import tables
from experiments.flag_tables.sources import Sources
from explorer.engines.flags import Flag, table

_FOLDER = os.environ.get("MESHWRIGHT_ENGINE_WHEELS", "")
_ENGINES = ("sglang", "vllm")
_PARTS = (
    *("device", "disagg", "exec_", "lora", "memory", "mm"),
    *("model", "observability", "parallel", "schedule", "serving", "spec"),
)

pytestmark = pytest.mark.skipif(
    not _FOLDER, reason="MESHWRIGHT_ENGINE_WHEELS names no folder with the wheels of sglang and vllm"
)


@pytest.fixture(scope="module")
def read() -> dict[str, tuple[str, dict[str, dict[str, object]]]]:
    return tables(pathlib.Path(_FOLDER))


def _row(flag: Flag) -> dict[str, object]:
    row: dict[str, object] = {"spellings": list(flag.spellings), "kind": flag.kind}
    if flag.kind == "list":
        row["items"] = flag.items
    if flag.choices:
        row["choices"] = list(flag.choices)
    if flag.default is not None:
        row["default"] = flag.default
    for key in ("field", "fallback"):
        if getattr(flag, key) is not None:
            row[key] = getattr(flag, key)
    return row | {key: True for key in ("open", "suffixes", "bare", "repeated", "may_be_empty") if getattr(flag, key)}


@pytest.mark.parametrize("engine", _ENGINES)
def test_every_flag_with_its_choices_and_default(
    engine: str, read: dict[str, tuple[str, dict[str, dict[str, object]]]]
) -> None:
    if engine not in read:
        pytest.skip(f"{_FOLDER} holds no {engine}")
    version, rows = read[engine]
    ours = table(engine)
    assert ours.version == version, "run `python -m experiments.flag_tables WHEEL --write`"
    assert {name: _row(flag) for name, flag in ours.flags.items()} == rows


@pytest.mark.parametrize("engine", _ENGINES)
def test_every_long_word_that_the_parsers_name(engine: str) -> None:
    """An oracle that does not follow the sources: names in their text."""
    if not any(pathlib.Path(_FOLDER).glob(f"{engine}*")):
        pytest.skip(f"{_FOLDER} holds no {engine}")
    named = _named_by_vllm() if engine == "vllm" else _named_by_sglang()
    known = {spelling for flag in table(engine).flags.values() for spelling in flag.spellings}
    long = {spelling for spelling in known if spelling.startswith("--")}
    assert long == named


def _text(engine: str, name: str) -> str:
    root = pathlib.Path(_FOLDER)
    place = root if (root / engine).is_dir() else next(root.glob(f"{engine}-*.whl"))
    text = Sources(place, engine).text(name)
    assert text is not None
    return text


def _named_by_vllm() -> set[str]:
    """First words of every add_argument, and the annotated names of the server's two classes."""
    engine, server = _text("vllm", "vllm/engine/arg_utils.py"), _text("vllm", "vllm/entrypoints/common/cli_args.py")
    named = set(_long_in_calls(engine + server))
    classes = server[server.index("class BaseFrontendArgs") : server.index("def resolve_default_chat")]
    return named | {
        "--" + name.replace("_", "-") for name in re.findall(r"^    ([a-z]\w+): [A-Za-z]", classes, re.MULTILINE)
    }


def _named_by_sglang() -> set[str]:
    """Names annotated with A[...] that are not kept from the command line, and every quoted spelling."""
    named: set[str] = set()
    for part in _PARTS:
        text = _text("sglang", f"sglang/srt/arg_groups/fields/{part}.py")
        for found in re.finditer(r"^    (\w+): A\[(.*?)(?=^    \w+: |^class |\Z)", text, re.MULTILINE | re.DOTALL):
            name, said = found[1], found[2]
            if "no_cli=True" in said:
                continue
            own = re.search(r'cli_name="(--[a-z0-9-]+)"', said)
            named.add(own[1] if own else "--" + name.replace("_", "-"))
            aliases = re.search(r"aliases=\[(.*?)\]", said, re.DOTALL)
            named |= set(re.findall(r'"(--[a-z0-9-]+)"', aliases[1])) if aliases else set()
    named |= set(re.findall(r'== "(--[a-z-]+)"', _text("sglang", "sglang/cli/serve.py")))
    by_hand = _text("sglang", "sglang/srt/server_args.py")
    return named | set(_long_in_calls(by_hand))


def _long_in_calls(text: str) -> list[str]:
    calls = re.findall(r'add_argument\(((?:\s*"-[^"]*",?)+)', text)
    return [spelling for call in calls for spelling in re.findall(r'"(--[a-z0-9-]+)"', call)]
