"""Launches in what starts containers: Dockerfiles, compose files, Kubernetes manifests."""

import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from explorer.engines.command.launch import Launch
from explorer.engines.command.program import image_words
from explorer.engines.command.shell import Shell
from explorer.engines.command.words import commands

_INSTRUCTION: Final = re.compile(r"(FROM|ENV|ARG|ENTRYPOINT|CMD)\s+(.*)", re.IGNORECASE | re.DOTALL)
_BEGINNING: Final = re.compile(r"\A(?:\s*(?:#[^\n]*)?\n|\s*ARG\s[^\n]*\n)*\s*FROM\s+\S", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"\$\((\w+)\)")


def container_launches(document: Any, source: str, folder: pathlib.Path | None) -> list[Launch]:
    """Launches of every container that a parsed manifest describes: `command` and `args`, or `entrypoint` and `command`
    as compose has them. Each says in which container it stands."""
    launches: list[Launch] = []
    for name, holder in _containers(document, ""):
        shell = Shell(f"{name} of {source}" if name else source, folder)
        env = _environment(holder.get("environment", holder.get("env")))
        first = holder.get("entrypoint", holder.get("command") if "args" in holder else None)
        then = holder.get("args") if "args" in holder else holder.get("command")
        words = [*_words(first), *_words(then)]
        if words:
            shell.start(image_words(str(holder.get("image", "")), [_filled(word, env) for word in words]), env, [], 1)
            launches += shell.finish()
    return launches


def is_dockerfile(text: str) -> bool:
    """Whether a text begins as a Dockerfile does."""
    return _BEGINNING.match(text[:65536]) is not None


def dockerfile_launches(text: str, source: str, folder: pathlib.Path | None) -> list[Launch]:
    """What a Dockerfile's last ENTRYPOINT and CMD start, with what ENV sets."""
    shell = Shell(source, folder)
    image, entry, command = "", [], []
    for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines():
        found = _INSTRUCTION.match(line.strip())
        if found is None:
            continue
        kind, rest = found[1].upper(), found[2].strip()
        if kind == "FROM":
            image, entry, command = rest.split()[0], [], []
        elif kind in ("ENV", "ARG"):
            shell.export(_dockerfile_env(rest))
        elif kind == "ENTRYPOINT":
            entry = _exec_form(rest)
        else:
            command = _exec_form(rest)
    if entry or command:
        shell.start(image_words(image, [*entry, *command]), {}, [], 1)
    return shell.finish()


def _containers(document: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > 40:
        return
    if isinstance(document, Mapping):
        if any(isinstance(document.get(key), list | str) for key in ("command", "args", "entrypoint")):
            yield str(document.get("name", name)), document
        for key, value in document.items():
            yield from _containers(value, str(key), depth + 1)
    elif isinstance(document, list):
        for value in document:
            yield from _containers(value, name, depth + 1)


def _words(held: Any) -> list[str]:
    """A list as it is, a text as a shell splits it."""
    if isinstance(held, list):
        return [str(word) for word in held if isinstance(word, str | int | float)]
    if isinstance(held, str):
        return [word.text for command in commands(held) for word in command.words]
    return []


def _environment(held: Any) -> dict[str, str]:
    """`NAME: value`, `- NAME=value`, or Kubernetes' list of name and value."""
    if isinstance(held, Mapping):
        return {str(name): str(value) for name, value in held.items() if value is not None}
    made: dict[str, str] = {}
    for each in held if isinstance(held, list) else ():
        if isinstance(each, str) and "=" in each:
            name, _, value = each.partition("=")
            made[name] = value
        elif isinstance(each, Mapping) and "name" in each and "value" in each:
            made[str(each["name"])] = str(each["value"])
    return made


def _filled(word: str, env: Mapping[str, str]) -> str:
    """Kubernetes puts the environment's values into a word where it says $(NAME)."""
    return _REFERENCE.sub(lambda found: env.get(found[1], found[0]), word)


def _exec_form(rest: str) -> list[str]:
    try:
        held = json.loads(rest)
    except (ValueError, RecursionError):
        return ["sh", "-c", rest]
    return _words(held)


def _dockerfile_env(rest: str) -> dict[str, str]:
    words: Sequence[str] = _words(rest)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return {name: value for name, _, value in (word.partition("=") for word in words)}
