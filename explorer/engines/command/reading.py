"""Launch commands in a shell text."""

import pathlib
from collections.abc import Sequence
from typing import Final

from explorer.engines.command.launch import CommandError, Launch
from explorer.engines.command.shell import Shell

LONGEST: Final = 16 * 2**20
"""Characters of a text that are read."""


def read_launches(text: str, source: str = "command", folder: pathlib.Path | None = None) -> tuple[Launch, ...]:
    """The launches of SGLang and vLLM that a shell text holds, in order; flags alone are a launch too.

    Variables are replaced by what the text itself assigns to them; nothing is run. `source` is what each launch says of
    where it stands. A YAML file that `--config` names is read if it lies in `folder`; no other file is opened.
    CommandError if there is no launch, a quote is not closed, or the text is longer than LONGEST.
    """
    shell = Shell(source, folder)
    shell.follow(checked(text, source))
    return found(shell.finish(), source)


def read_script(text: str, name: str, folder: pathlib.Path | None = None) -> tuple[Launch, ...]:
    """As read_launches, of the script that a file holds: each launch says on which line it stands."""
    shell = Shell(name, folder, lined=True)
    shell.follow(checked(text, name))
    return found(shell.finish(), name)


def checked(text: str, source: str) -> str:
    """A text that may be read. CommandError for one that is too long or holds what no text does."""
    if len(text) > LONGEST:
        raise CommandError(f"{source} is longer than {LONGEST >> 20} MiB: give the launch command alone")
    if "\0" in text:
        raise CommandError(f"{source} holds NUL characters: give a launch command as text")
    return text


def found(launches: Sequence[Launch], source: str) -> tuple[Launch, ...]:
    """Launches, of which there is one at least."""
    if not launches:
        raise CommandError(
            f"{source} starts no engine: give a command such as `python -m sglang.launch_server ...`, "
            "`vllm serve MODEL ...`, or its flags alone"
        )
    return tuple(launches)
