"""A shell text split into commands of words, as POSIX quotes them. Nothing is expanded here, and nothing ever runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from explorer.engines.command.launch import CommandError

_PART: Final = re.compile(
    r"""(?P<joined>\\\r?\n)
      | (?P<space>[ \t\r\f\v]+)
      | (?P<line>\n)
      | (?P<redirect>(?:&>>?|>>|>&|<<<|<<-?|<>|>\||>|<)(?:&?\d+-?(?![^\s;|&]))?)
      | (?P<end>&&|\|\||;;|[;|&()])
      | (?P<single>'[^']*')
      | (?P<double>"(?:[^"\\]|\\[\s\S])*")
      | (?P<escaped>\\[\s\S])
      | (?P<run>`[^`]*`)
      | (?P<call>\$\()
      | (?P<braced>\$\{(?:[^}\n]*\})?)
      | (?P<plain>[^\s\\'"`$&;|<>()]+|\$[A-Za-z_]\w*|\$[0-9@*\#?!]|\$)
    """,
    re.VERBOSE,
)
_IN_DOUBLE: Final = re.compile(r"\\([\\\"$`])|\\\r?\n")


@dataclass(slots=True)
class Piece:
    """A stretch of a word in which `$NAME` may stand, or one that is literal."""

    text: str
    literal: bool
    quoted: bool


@dataclass(slots=True)
class Word:
    """A word before expansion, and the line on which it begins."""

    line: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The word with nothing expanded."""
        return "".join(piece.text for piece in self.pieces)


@dataclass
class Command:
    """The words of one simple command."""

    line: int
    words: list[Word]


def commands(text: str) -> Iterator[Command]:
    """Simple commands of a text, in order. CommandError for a quote that is never closed."""
    words: list[Word] = []
    for word in _Splitter(text).words():
        if word is not None:
            words.append(word)
        elif words:
            yield Command(words[0].line, words)
            words = []


class _Splitter:
    """One pass over a text: words, and None where a command ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._word: Word | None = None
        self._skip_word = False
        self._documents: list[str] = []
        self._document_next = False

    def words(self) -> Iterator[Word | None]:
        """Words in order; None ends a command."""
        while self._at < len(self._text):
            if self._word is None and self._text[self._at] == "#":
                self._at = self._end_of_line(self._at)
                continue
            found = _PART.match(self._text, self._at)
            if found is None:
                raise self._unclosed()
            kind, part = found.lastgroup or "", found.group()
            if part == "${":
                raise self._unclosed()
            self._at = found.end()
            if kind in ("space", "line", "end", "redirect"):
                yield from self._close(kind, part)
            else:
                self._add(kind, part)
            self._line += part.count("\n")
        yield from self._close("line", "")

    def _close(self, kind: str, part: str) -> Iterator[Word | None]:
        word, self._word = self._word, None
        if word is not None and not (kind == "redirect" and word.text.isdigit()):
            yield from self._finished(word)
        if kind == "redirect":
            # a file descriptor after it is its target; else the next word is
            self._skip_word = not part[-1].isdigit()
            self._document_next = part in ("<<", "<<-")
        elif kind in ("line", "end"):
            self._skip_word = False
            yield None
        if kind == "line":
            self._pass_documents()

    def _finished(self, word: Word) -> Iterator[Word]:
        if self._document_next:
            self._documents.append(word.text)
        if not self._skip_word:
            yield word
        self._skip_word = self._document_next = False

    def _add(self, kind: str, part: str) -> None:
        if kind == "joined":
            return
        if self._word is None:
            self._word = Word(self._line)
        add = self._word.pieces.append
        if kind == "single":
            add(Piece(part[1:-1], True, True))
        elif kind == "double":
            self._double(part[1:-1])
        elif kind == "escaped":
            add(Piece(part[1:], True, True))
        elif kind == "run":
            add(Piece(part, True, False))
        elif kind == "call":
            add(Piece(part + self._to_bracket(), True, False))
        else:
            add(Piece(part, False, False))

    def _double(self, inside: str) -> None:
        """Between double quotes a backslash keeps the next of `\\`, `"`, `$` and a backquote as it is."""
        assert self._word is not None
        at = 0
        for found in _IN_DOUBLE.finditer(inside):
            self._word.pieces.append(Piece(inside[at : found.start()], False, True))
            self._word.pieces.append(Piece(found.group(1) or "", True, True))
            at = found.end()
        self._word.pieces.append(Piece(inside[at:], False, True))

    def _to_bracket(self) -> str:
        """The rest of a `$(...)`, kept as it is written."""
        depth, start = 1, self._at
        for found in re.finditer(r"[()]", self._text[start : start + 4096]):
            depth += 1 if found.group() == "(" else -1
            if depth == 0:
                self._at = start + found.end()
                return self._text[start : self._at]
        raise self._unclosed()

    def _pass_documents(self) -> None:
        """Lines of here-documents belong to no command."""
        for end in self._documents:
            while self._at < len(self._text):
                stop = self._end_of_line(self._at)
                line, self._at = self._text[self._at : stop].strip(), min(stop + 1, len(self._text))
                self._line += 1
                if line == end:
                    break
        self._documents = []

    def _end_of_line(self, at: int) -> int:
        stop = self._text.find("\n", at)
        return len(self._text) if stop < 0 else stop

    def _unclosed(self) -> CommandError:
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        mark = self._text[self._at]
        return CommandError(
            f"the {mark!r} at line {self._line}, column {column} is never closed: close it, or escape it"
        )
