"""Launch commands in a shell text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from explorer.engines.command.flags import Arguments, read_arguments
from explorer.engines.command.launch import CommandError, EngineName, Launch
from explorer.engines.command.program import environment, find_program, inner_text
from explorer.engines.command.variables import assignment, expand
from explorer.engines.command.words import Command, commands
from explorer.engines.flags import table

LONGEST: Final = 16 * 2**20
"""Characters of a text that are read."""
_MOST_LAUNCHES: Final = 1000


def read_launches(text: str, source: str = "command") -> tuple[Launch, ...]:
    """The launches of SGLang and vLLM that a shell text holds, in order; flags alone are a launch too.

    Variables are replaced by what the text itself assigns to them; nothing is run and no file is opened. `source` is
    what each launch says of where it stands. CommandError if there is none, a quote is not closed, or the text is
    longer than LONGEST.
    """
    if len(text) > LONGEST:
        raise CommandError(f"{source} is longer than {LONGEST >> 20} MiB: give the launch command alone")
    if "\0" in text:
        raise CommandError(f"{source} holds NUL characters: give a launch command as text")
    shell = _Shell(source)
    shell.run_through(text)
    if not shell.launches:
        shell.launches += _bare(shell.bare, source)
    if not shell.launches:
        raise CommandError(
            f"{source} starts no engine: give a command such as `python -m sglang.launch_server ...`, "
            "`vllm serve MODEL ...`, or its flags alone"
        )
    return tuple(shell.launches)


@dataclass
class _Shell:
    """What a shell would know after the commands so far."""

    source: str
    variables: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    bare: list[tuple[list[str], list[str]]] = field(default_factory=list)

    def run_through(self, text: str, env: Mapping[str, str] | None = None, inner: bool = False) -> None:
        """Follow the commands of a text: `env` is what stands before it, `inner` whether a shell word holds it."""
        for command in commands(text):
            self._command(command, env or {}, inner)

    def _command(self, command: Command, env: Mapping[str, str], inner: bool) -> None:
        notes: list[str] = []
        words = [made for word in command.words for made in expand(word, self.variables, notes)]
        if not words or self._assigns(words):
            return
        program = find_program(words)
        if program is not None:
            self._add(program.engine, program.words, {**self.exported, **env, **program.env}, notes)
            return
        nested = None if inner else inner_text(words)
        if nested is not None:
            self.run_through(nested[0], nested[1], inner=True)
        elif words[0].startswith("-"):
            self.bare.append((words, notes))

    def _assigns(self, words: Sequence[str]) -> bool:
        """Whether a command only sets variables; they are kept."""
        export = words[0] in ("export", "declare", "typeset", "readonly", "local", "set", "ENV")
        given = [pair for pair in map(assignment, words[1:] if export else words) if pair is not None]
        if not export and len(given) < len(words):
            return False
        self.variables.update(given)
        if words[0] in ("export", "ENV"):
            self.exported.update(given)
            self.exported.update({word: self.variables[word] for word in words[1:] if word in self.variables})
        return True

    def _add(self, engine: EngineName, words: Sequence[str], env: Mapping[str, str], notes: Sequence[str]) -> None:
        if len(self.launches) >= _MOST_LAUNCHES:
            raise CommandError(f"{self.source} holds more than {_MOST_LAUNCHES} launches: give one of them")
        self.launches.append(launch(read_arguments(engine, words), env, notes, self.source))


def launch(made: Arguments, env: Mapping[str, str], notes: Iterable[str], source: str) -> Launch:
    """A launch from the arguments that were read."""
    return Launch(
        engine=made.engine,
        model=made.model,
        values=made.values,
        env=dict(env),
        unknown=tuple(made.unknown),
        replaced=tuple(made.replaced),
        notes=(*notes, *made.notes),
        source=source,
    )


def _bare(found: Sequence[tuple[list[str], list[str]]], source: str) -> Iterable[Launch]:
    for words, notes in found:
        engine = _engine_of(words)
        if engine is not None:
            yield launch(read_arguments(engine, words), environment(()), notes, source)


def _engine_of(words: Sequence[str]) -> EngineName | None:
    """The engine that knows most of some flags; a flag that it lists first counts more than an alias of it."""
    votes = {engine: sum(_vote(engine, word) for word in words if word.startswith("-")) for engine in EngineName}
    best = max(votes.values())
    if not best:
        return None
    leaders = [engine for engine in EngineName if votes[engine] == best]
    if len(leaders) > 1:
        raise CommandError(
            f"flags {_short(' '.join(words))!r} are of both engines: write `sglang serve` or `vllm serve` before them"
        )
    return leaders[0]


def _vote(engine: EngineName, word: str) -> int:
    known = table(engine)
    spelling = word.partition("=")[0]
    if engine is EngineName.VLLM:
        spelling = spelling.partition(".")[0].replace("_", "-")
    if spelling in known.renamed:
        return 1
    found = known.spellings.get(spelling)
    if found is None:
        return int(len(known.beginning(spelling)) > 0 and len(spelling) > 3)
    return 2 if spelling == found[0].spellings[0] else 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
