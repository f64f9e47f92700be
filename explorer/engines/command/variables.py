"""Variables of a shell text: replaced by what the same text assigns to them, and by nothing else."""

import re
from typing import Final

from explorer.engines.command.arguments import say, short
from explorer.engines.command.launch import CommandError
from explorer.engines.command.words import Word

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_USE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*#?$!])|\{([A-Za-z_]\w*)(?:(:?[-=])([^}]*))?\})|\$\{[^}]*\}")
# values may be made of values, again and again: what all of them come to is bounded
_MOST: Final = 16 * 2**20


class Variables(dict[str, str]):
    """What a text has assigned so far."""

    spent = 0

    def spend(self, value: str) -> str:
        """A value that goes into a word. CommandError once all of them are longer than a text may be."""
        self.spent += len(value)
        if self.spent > _MOST:
            raise CommandError(f"variables come to more than {_MOST >> 20} MiB: give the launch command alone")
        return value


def assignment(text: str) -> tuple[str, str] | None:
    """Name and value of a word `NAME=value`; None for any other word."""
    found = _ASSIGNMENT.fullmatch(text)
    return (found[1], found[2]) if found else None


def expand(word: Word, known: Variables, notes: list[str]) -> list[str]:
    """The words that a word becomes: one, or several where a bare variable holds blanks, or none where it is empty.

    What is not assigned in the text stays as it is written, as does what only a shell could run; `notes` says so.
    """
    made = [""]
    written = False
    for piece in word.pieces:
        if piece.literal:
            if not piece.quoted:
                say(notes, f"{short(piece.text)} is not run: it stays as written")
            made[-1] += piece.text
            written = True
            continue
        text = _USE.sub(lambda found: _value(found, known, notes), piece.text) if "$" in piece.text else piece.text
        if piece.quoted or text == piece.text:
            made[-1] += text
            written = written or piece.quoted or bool(text)
        else:
            first, *rest = text.split() or [""]
            made[-1] += first
            made += rest
    return made if written or any(made) else []


def _value(found: re.Match[str], known: Variables, notes: list[str]) -> str:
    name = found[1] or found[2]
    default = found[4] if found[3] else None
    if name in known and not (found[3] and found[3].startswith(":") and not known[name]):
        return known.spend(known[name])
    if default is not None and "$" not in default:
        return default.strip("\"'")
    say(notes, f"{short(found[0])} is not expanded: nothing in the text assigns it")
    return found[0]
