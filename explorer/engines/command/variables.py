"""Variables of a shell text: replaced by what the same text assigns to them, and by nothing else."""

import re
from collections.abc import Mapping
from typing import Final

from explorer.engines.command.words import Word

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_USE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*#?$!])|\{([A-Za-z_]\w*)(?:(:?[-=])([^}]*))?\})|\$\{[^}]*\}")
# a text may assign to a variable twice its own value, again and again
_LONGEST: Final = 65536


def assignment(text: str) -> tuple[str, str] | None:
    """Name and value of a word `NAME=value`; None for any other word."""
    found = _ASSIGNMENT.fullmatch(text)
    return (found[1], found[2]) if found else None


def expand(word: Word, known: Mapping[str, str], notes: list[str]) -> list[str]:
    """The words that a word becomes: one, or several where a bare variable holds blanks, or none where it is empty.

    What is not assigned in the text stays as it is written, as does what only a shell could run; `notes` says so.
    """
    made = [""]
    written = False
    for piece in word.pieces:
        if piece.literal:
            if not piece.quoted:
                _note(notes, f"{_short(piece.text)} is not run: it stays as written")
            made[-1] += piece.text
            written = True
            continue
        text = _USE.sub(lambda found: _value(found, known, notes), piece.text) if "$" in piece.text else piece.text
        if len(text) > _LONGEST:
            _note(notes, f"{_short(piece.text)} is not expanded: it is longer than {_LONGEST} characters")
            text = piece.text
        if piece.quoted or text == piece.text:
            made[-1] += text
            written = written or piece.quoted or bool(text)
        else:
            first, *rest = text.split() or [""]
            made[-1] += first
            made += rest
    return made if written or any(made) else []


def _value(found: re.Match[str], known: Mapping[str, str], notes: list[str]) -> str:
    name = found[1] or found[2]
    default = found[4] if found[3] else None
    if name in known and not (found[3] and found[3].startswith(":") and not known[name]):
        return known[name]
    if default is not None and "$" not in default:
        return default.strip("\"'")
    _note(notes, f"{_short(found[0])} is not expanded: nothing in the text assigns it")
    return found[0]


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
