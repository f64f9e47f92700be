"""Files that launch commands name with --config: their keys as the words that the engine makes of them."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.engines.command.launch import CommandError, EngineName
from explorer.engines.command.plain_yaml import read_yaml
from explorer.engines.command.text_file import read_text
from explorer.engines.flags import table


def config_words(engine: EngineName, words: Sequence[str], folder: pathlib.Path | None, notes: list[str]) -> list[str]:
    """The words that the engine puts before a launch's own: those of the YAML file that `--config` names.

    The file is read only where it lies in `folder`; else `notes` says that it is not. CommandError for one that is no
    mapping.
    """
    name = _named(words)
    if name is None:
        return []
    file = _inside(folder, name)
    if file is None:
        notes.append(f"--config {name[:80]} is not read: it is not beside the command")
        return []
    documents = read_yaml(read_text(file), file.name)
    if documents and not isinstance(documents[0], Mapping):
        raise CommandError(f"{file.name} is no mapping of flags to values: write `tp-size: 8` and the like")
    return mapping_words(engine, documents[0] if documents else {}, notes)


def mapping_words(engine: EngineName, held: Mapping[Any, Any], notes: list[str]) -> list[str]:
    """Words of a configuration file's keys.

    SGLang 0.5.23 utils/server_args_config_parser.py, ConfigArgumentMerger; vLLM 0.33.0 utils/argparse_utils.py,
    load_config_file.
    """
    made: list[str] = []
    for key, value in held.items():
        spelling = "--" + str(key).replace("_", "-")
        if value is None:
            notes.append(f"{spelling} has no value in the file: it is left out")
        elif value is True:
            made.append(spelling)
        elif value is False:
            negation = "--no-" + spelling[2:]
            made += [negation] if negation in table(engine).spellings else []
        elif isinstance(value, list):
            made += [spelling, *map(str, value)] if value else []
        elif isinstance(value, Mapping):
            made += [spelling, json.dumps(value, default=str)]
        else:
            # one word, so that a value that begins with a dash is none of the flags
            made.append(f"{spelling}={value}")
    return made


def _named(words: Sequence[str]) -> str | None:
    for at, word in enumerate(words):
        if word == "--config" and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


def _inside(folder: pathlib.Path | None, name: str) -> pathlib.Path | None:
    if folder is None or len(name) > 1024:
        return None
    try:
        root = folder.resolve()
        file = (root / name).resolve()
        return file if file.is_relative_to(root) and file.is_file() else None
    except (OSError, ValueError):
        return None
