"""Every flag that is written for an older version, and its value, against that version's own parser.

MESHWRIGHT_ENGINE_WHEELS names a folder that holds wheels of those versions, or folders with them. The newest versions
are held against their tables of flags, which `test_flags_against_wheels` compares with the sources.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from explorer.engines.command import EngineName
from explorer.engines.export import ExportError, Options
from explorer.engines.export.command import command_of
from explorer.engines.export.versions import known_versions, version_of
from explorer.engines.flags import table
from explorer.request import Request
from layouts.layout import Layout
from layouts.serving.reserve import Role
from tests.engines.exported import exported, files_read_once, layouts_of, request_of
from tests.engines.older_parsers import flags_of, wheel_of

_FOLDER = os.environ.get("MESHWRIGHT_ENGINE_WHEELS", "")
OLDER = [(engine, number) for engine in EngineName for number in known_versions(engine)[1:]]
_EACH = 12  # layouts of a model, number of GPUs and phase


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with files_read_once():
        yield


def asked(engine: EngineName) -> Iterator[tuple[Request, Layout, Role]]:
    """Layouts of all kinds of models, the same every time."""
    draw = random.Random(0)
    for model, gpus, role in (
        (model, gpus, role)
        for model in ("deepseek-v3", "kimi-k3", "qwen3-235b-a22b", "llama-3.1-70b")
        for gpus in (4, 16)
        for role in Role
    ):
        request = replace(request_of(model, gpus, role is Role.PREFILL), concurrency=48)
        space = layouts_of(engine, model, gpus, role is Role.PREFILL)
        for row in draw.sample(range(len(space)), min(_EACH, len(space))):
            yield request, space.layout(row), role


def written(engine: EngineName, number: str) -> set[tuple[str, ...]]:
    """Every flag with its value, as words, of the layouts that a version can be told."""
    found: set[tuple[str, ...]] = set()
    for request, layout, role in asked(engine):
        try:
            server, _, _ = exported(request, layout, Options(engine, number), role, request.model.name, 0.85)
        except ExportError:
            continue
        for rank in range(server.hosts.count):
            found |= set(command_of(server, rank, "host0").flags)
    return found


@pytest.mark.parametrize("engine", EngineName)
def test_the_newest_version_takes_every_word(engine: EngineName) -> None:
    number = known_versions(engine)[0]
    words = written(engine, number)
    spellings = table(engine).spellings
    assert len({flag for flag, *_ in words}) > 15
    for flag, *values in words:
        known, _ = spellings[flag]
        if known.choices and not known.open:
            assert set(values) <= set(map(str, known.choices)), flag


@pytest.mark.parametrize(("engine", "number"), OLDER)
def test_an_older_version_takes_every_word(engine: EngineName, number: str) -> None:
    wheel = wheel_of(_FOLDER, engine, number)
    if wheel is None:
        pytest.skip(f"MESHWRIGHT_ENGINE_WHEELS names no folder with the wheel of {engine} {number}")
    parser, words = flags_of(wheel, engine), written(engine, number)
    assert len({flag for flag, *_ in words}) > 12
    for flag, *values in words:
        for word in (flag, *(value for value in values if value.startswith("--"))):
            assert word in parser
        choices = parser[flag]
        if choices:
            assert set(values) <= set(map(str, choices)), flag


@pytest.mark.parametrize(("engine", "number"), OLDER)
def test_what_an_older_version_lacks(engine: EngineName, number: str) -> None:
    wheel = wheel_of(_FOLDER, engine, number)
    if wheel is None:
        pytest.skip(f"MESHWRIGHT_ENGINE_WHEELS names no folder with the wheel of {engine} {number}")
    parser, version = flags_of(wheel, engine), version_of(engine, number)
    for name in (*version.lacks, *version.renamed):
        assert table(engine).flags[name].spellings[0] not in parser
    for name, words in version.words.items():
        choices = parser[table(engine).flags[name].spellings[0]]
        assert choices is not None and set(words) == set(choices)
