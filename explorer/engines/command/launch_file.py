"""A file that holds launches, told apart by what is in it."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Final

from explorer.engines.command.config import mapping_words
from explorer.engines.command.containers import container_launches, dockerfile_launches, is_dockerfile
from explorer.engines.command.flags import read_arguments
from explorer.engines.command.launch import CommandError, Launch
from explorer.engines.command.plain_yaml import read_yaml
from explorer.engines.command.program import engine_of_flags
from explorer.engines.command.reading import checked, found, read_script
from explorer.engines.command.records import launch_of_server_args, launch_of_server_info
from explorer.engines.command.shell import launch_of
from explorer.engines.command.text_file import read_text

_YAML: Final = (".yaml", ".yml")
_MOST_LINES: Final = 100_000


def read_launch_file(path: str | os.PathLike[str]) -> tuple[Launch, ...]:
    """The launches of a script, a configuration file of --config, a server_info in JSON or JSON lines, a Dockerfile, or
    the manifests of compose and Kubernetes, in order.

    A file that a launch names with --config is read if it lies beside this one. CommandError for a file that cannot be
    read, is binary or larger than 16 MiB, or starts no engine.
    """
    file = pathlib.Path(path).expanduser()
    text = checked(read_text(file), file.name)
    if text.lstrip()[:1] in ("{", "["):
        launches = _of_json(text, file.name)
        if launches is not None:
            return found(launches, file.name)
    if file.suffix.lower() in _YAML:
        return found(_of_yaml(text, file), file.name)
    if is_dockerfile(text):
        return found(dockerfile_launches(text, file.name, file.parent), file.name)
    if "ServerArgs(" in text or "non-default args: {" in text:
        return (launch_of_server_args(text, file.name),)
    return read_script(text, file.name, file.parent)


def _of_json(text: str, name: str) -> list[Launch] | None:
    """Launches of one JSON document or of JSON lines, each distinct one once; None for a text that is neither."""
    try:
        documents = [json.loads(text)]
    except (ValueError, RecursionError):
        documents = _json_lines(text)
    if documents is None:
        return None
    launches: list[Launch] = []
    for document in documents:
        for info in document if isinstance(document, list) else [document]:
            if isinstance(info, Mapping):
                launches += _of_mapping(info, name)
    distinct: list[Launch] = []
    for launch in launches[:1000]:
        if launch not in distinct:
            distinct.append(launch)
    return distinct


def _json_lines(text: str) -> list[Any] | None:
    try:
        return [json.loads(line) for line in text.splitlines()[:_MOST_LINES] if line.strip()]
    except (ValueError, RecursionError):
        return None


def _of_mapping(info: Mapping[str, Any], name: str) -> list[Launch]:
    containers = container_launches(info, name, None)
    if containers:
        return containers
    return [launch_of_server_info(info, name)]


def _of_yaml(text: str, file: pathlib.Path) -> list[Launch]:
    documents = read_yaml(text, file.name)
    launches = [launch for document in documents for launch in container_launches(document, file.name, file.parent)]
    if launches:
        return launches
    if len(documents) != 1 or not isinstance(documents[0], Mapping):
        raise CommandError(f"{file.name} holds no launch: give flags and values, or a manifest with a command")
    notes: list[str] = []
    words = [f"--{key}".replace("_", "-") for key in documents[0]]
    engine = engine_of_flags(words)
    if engine is None:
        return []
    made = read_arguments(engine, mapping_words(engine, documents[0], notes))
    return [launch_of(made, {}, notes, file.name)]
