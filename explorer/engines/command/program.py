"""Where in a command an engine begins: what stands before it is a wrapper, an environment, or both."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from explorer.engines.command.arguments import short
from explorer.engines.command.launch import CommandError, EngineName
from explorer.engines.command.variables import assignment
from explorer.engines.flags import table

_MODULES: Final = {
    "sglang.launch_server": EngineName.SGLANG,
    "sglang.srt.entrypoints.http_server": EngineName.SGLANG,
    "vllm.entrypoints.openai.api_server": EngineName.VLLM,
    "vllm.entrypoints.api_server": EngineName.VLLM,
}
_FILES: Final = {
    "sglang/launch_server.py": EngineName.SGLANG,
    "vllm/entrypoints/openai/api_server.py": EngineName.VLLM,
}
# images that start the engine themselves: what follows the image are its flags
_IMAGES: Final = re.compile(r"(?:[\w.\-:]+/)*vllm-openai(?:-\w+)*(?:[:@][\w.\-:]+)?")
_RUNNERS: Final = ("docker", "podman", "nerdctl")
_SHELLS: Final = ("bash", "sh", "zsh", "dash")
_SHELL_TEXT: Final = re.compile(r"-[a-z]*c")


@dataclass(frozen=True)
class Program:
    """An engine in a command: the words after it, and the environment that the words before it set."""

    engine: EngineName
    words: Sequence[str]
    env: dict[str, str]


def find_program(words: Sequence[str]) -> Program | None:
    """The engine that a command starts; None if it starts none."""
    for at, word in enumerate(words):
        found = _at(words, at, word)
        if found is not None:
            engine, after = found
            return Program(engine, words[after:], environment(words[:at]))
    return _image(words)


def inner_text(words: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """The text that a shell in the command is told to run (`bash -c "..."`), and the environment before it."""
    for at, word in enumerate(words[:-2]):
        if _name(word) not in _SHELLS:
            continue
        for next_at in range(at + 1, len(words) - 1):
            if not words[next_at].startswith("-"):
                break
            if _SHELL_TEXT.fullmatch(words[next_at]):
                return words[next_at + 1], environment(words[:at])
    return None


def image_words(image: str, words: Sequence[str]) -> Sequence[str]:
    """The words of a container: behind the engine that its image starts, if it is an image that starts one and they
    start none."""
    starts = _IMAGES.fullmatch(image) is not None and find_program(words) is None and inner_text(words) is None
    return ["vllm", "serve", *words] if starts else words


def environment(words: Sequence[str]) -> dict[str, str]:
    """What the words before a program set: `NAME=value`, alone or after `-e`, `--env` or `-x`."""
    made: dict[str, str] = {}
    for word in words:
        for prefix in ("--env=", "-e"):
            word = word.removeprefix(prefix)
        pair = assignment(word)
        if pair is not None:
            made[pair[0]] = pair[1]
    return made


def _at(words: Sequence[str], at: int, word: str) -> tuple[EngineName, int] | None:
    following = words[at + 1] if at + 1 < len(words) else ""
    if word in _MODULES and (
        at == 0 or words[at - 1] in ("-m", "--module") or at == len(words) - 1 or _flags(following)
    ):
        return _MODULES[word], at + 1
    if following == "serve" and _name(word) in ("sglang", "vllm"):
        return EngineName(_name(word)), at + 2
    for tail, engine in _FILES.items():
        if word.endswith(tail):
            return engine, at + 1
    return None


def _flags(word: str) -> bool:
    return word.startswith("-")


def _image(words: Sequence[str]) -> Program | None:
    if not any(_name(word) in _RUNNERS for word in words):
        return None
    for at, word in enumerate(words):
        if _IMAGES.fullmatch(word):
            return Program(EngineName.VLLM, words[at + 1 :], environment(words[:at]))
    return None


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def engine_of_flags(words: Sequence[str]) -> EngineName | None:
    """The engine that knows most of some flags, one that it lists first counting twice; None if none knows any.

    CommandError where both know as many.
    """
    flags = [word for word in words if word.startswith("-")]
    votes = {engine: sum(_vote(engine, word) for word in flags) for engine in EngineName}
    best = max(votes.values())
    leaders = [engine for engine in EngineName if votes[engine] == best]
    if best and len(leaders) > 1:
        raise CommandError(
            f"flags {short(' '.join(words[:50]))!r} are of both engines: write `sglang serve` or `vllm serve` first"
        )
    return leaders[0] if best else None


def _vote(engine: EngineName, word: str) -> int:
    known = table(engine)
    spelling = word.partition("=")[0]
    if engine is EngineName.VLLM:
        spelling = spelling.partition(".")[0].replace("_", "-")
    if spelling in known.renamed:
        return 1
    found = known.spellings.get(spelling)
    if found is None:
        return int(len(spelling) > 3 and len(known.beginning(spelling)) > 0)
    return 2 if spelling == found[0].spellings[0] else 1
