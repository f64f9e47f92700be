"""YAML of a stranger: plain values only, no anchors, bounded in size and depth."""

from typing import Any, Final

import yaml

from explorer.engines.command.launch import CommandError

_MOST_EVENTS: Final = 200_000
_DEEPEST: Final = 40
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, source: str) -> list[Any]:
    """The documents of a YAML text.

    CommandError if it is none, names a tag, or holds anchors or aliases: a few lines of them stand for any amount of
    memory.
    """
    try:
        _guard(text, source)
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, CommandError):
            raise
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise CommandError(f"{source} is no YAML that can be read{place} ({problem[:120]}): mend it") from None


def _guard(text: str, source: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if getattr(event, "anchor", None) is not None:
            line = event.start_mark.line + 1
            raise CommandError(f"{source} has an anchor or alias at line {line}: write its value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST or count > _MOST_EVENTS:
            raise CommandError(
                f"{source} is deeper than {_DEEPEST} levels or longer than {_MOST_EVENTS} parts: give the launch alone"
            )
