"""What a shell would know and start, were a text run: it never is."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Final

from explorer.engines.command.arguments import Arguments
from explorer.engines.command.config import config_words
from explorer.engines.command.flags import read_arguments
from explorer.engines.command.launch import CommandError, EngineName, Launch
from explorer.engines.command.program import engine_of_flags, find_program, inner_text
from explorer.engines.command.variables import Variables, assignment, expand
from explorer.engines.command.words import commands

_MOST_LAUNCHES: Final = 1000
_SETTERS: Final = ("export", "declare", "typeset", "readonly", "local", "set")


class Shell:
    """Variables, and the launches found so far."""

    def __init__(self, source: str, folder: pathlib.Path | None = None, lined: bool = False) -> None:
        self._source = source
        self._folder = folder
        self._lined = lined
        self._variables = Variables()
        self._exported: dict[str, str] = {}
        self._launches: list[Launch] = []
        self._bare: list[tuple[Sequence[str], list[str], int]] = []

    def follow(self, text: str, env: Mapping[str, str] | None = None, line: int | None = None) -> None:
        """Follow a text's commands. One that a shell word holds has that word's `line` and environment."""
        for command in commands(text):
            notes: list[str] = []
            words = [made for word in command.words for made in expand(word, self._variables, notes)]
            if words and not self._assigns(words):
                self.start(words, env or {}, notes, line or command.line, nested=line is not None)

    def start(
        self, words: Sequence[str], env: Mapping[str, str], notes: list[str], line: int, nested: bool = False
    ) -> None:
        """Take the words of one command, expanded."""
        program = find_program(words)
        if program is not None:
            self._add(program.engine, program.words, {**self._exported, **env, **program.env}, notes, line)
            return
        inner = None if nested else inner_text(words)
        if inner is not None:
            self.follow(inner[0], {**env, **inner[1]}, line)
        elif words[0].startswith("-"):
            self._bare.append((words, notes, line))

    def export(self, env: Mapping[str, str]) -> None:
        """Set variables for all that follows."""
        self._variables.update(env)
        self._exported.update(env)

    def finish(self) -> list[Launch]:
        """The launches; if there is none, those of flags that stand alone."""
        if not self._launches:
            for words, notes, line in self._bare:
                engine = engine_of_flags(words)
                if engine is not None:
                    self._add(engine, words, self._exported, notes, line)
        return self._launches

    def _assigns(self, words: Sequence[str]) -> bool:
        """Whether a command only sets variables; they are kept."""
        setter = words[0] in _SETTERS
        pairs = [assignment(word) for word in words[1:]] if setter or assignment(words[0]) is not None else [None]
        if not setter and None in pairs:
            return False
        given = dict(pair for pair in (*pairs, assignment(words[0])) if pair is not None)
        self._variables.update(given)
        if words[0] == "export":
            self._exported.update(given)
            self._exported.update({word: self._variables[word] for word in words[1:] if word in self._variables})
        return True

    def _add(
        self, engine: EngineName, words: Sequence[str], env: Mapping[str, str], notes: list[str], line: int
    ) -> None:
        if len(self._launches) >= _MOST_LAUNCHES:
            raise CommandError(f"{self._source} holds more than {_MOST_LAUNCHES} launches: give one of them")
        before = config_words(engine, words, self._folder, notes)
        source = f"line {line} of {self._source}" if self._lined else self._source
        self._launches.append(launch_of(read_arguments(engine, words, before), env, notes, source))


def launch_of(made: Arguments, env: Mapping[str, str], notes: Sequence[str], source: str) -> Launch:
    """A launch from the arguments that were read."""
    return Launch(
        engine=made.engine,
        model=made.model,
        values=made.values,
        env=dict(env),
        unknown=(*made.unknown, *([f"... and {made.more_unknown} more"] if made.more_unknown else [])),
        replaced=tuple(made.replaced),
        notes=(*notes, *made.notes),
        source=source,
    )
