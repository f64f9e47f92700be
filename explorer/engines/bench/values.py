"""The JSON values of a file, one after the other: a line each, spread over lines, or the elements of a list.

A file may be of any size. Of each value only what a reader of benchmarks asks for is kept: lists of every request's
times and texts are passed over while they are scanned, so that memory is bounded by `MOST_KEPT`.
"""

import json
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from hw.errors import MeshwrightError

MOST_KEPT: Final = 8 << 20  # bytes of one value, without what is passed over
MOST_BAD: Final = 100  # places that are no JSON, after which a file is no results
NESTED: Final = frozenset({"server_info", "requests", "ranks"})  # parts of a value that are kept whole
_CHUNK: Final = 1 << 20
_DEEPEST: Final = 64
_NAME: Final = 64  # bytes of a key that is worth comparing
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)
_REST: Final = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_STARTS: Final = (b'{"', b'[{"')  # of a value of its own: what is indented never begins a line like this


class BenchError(MeshwrightError):
    """A file of results that cannot be used."""


@dataclass(frozen=True)
class Found:
    """A value of a file, by the line (from 1) on which it begins. `reason`: why it could not be read, in words."""

    line: int
    value: Any
    reason: str | None = None


def values(file: pathlib.Path) -> Iterator[Found]:
    """Every JSON value of a file in order; those that are cut off or no JSON have a reason instead of a value.

    Raises BenchError for a file that cannot be read, or in which nearly nothing is JSON.
    """
    try:
        with file.open("rb") as opened:
            bad = 0
            for found in _scanned(opened):
                bad += found.reason is not None
                if bad > MOST_BAD:
                    raise BenchError(f"{file.name} is no JSON ({bad} places): give a benchmark's results, a run a line")
                yield found
    except OSError as error:
        raise BenchError(
            f"results {file.name!r} cannot be read ({error.strerror}): give the file that a benchmark wrote"
        ) from None


def _scanned(opened: BinaryIO) -> Iterator[Found]:
    scanner, line, fresh = _Scanner(), 1, True
    while chunk := opened.readline(_CHUNK):
        # an escape that is split at the end of a chunk
        while (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 and (more := opened.read(1)):
            chunk += more
        if line == 1 and fresh:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if fresh and scanner.inside and chunk.startswith(_STARTS):
            yield scanner.broken("is cut off")
        yield from scanner.feed(chunk, line)
        fresh = chunk.endswith(b"\n")
        line += fresh
    if scanner.depth:
        yield scanner.broken("is cut off")


class _Scanner:
    """Where in a value the scan is. `base`: depth of the value's own keys, 2 for an element of a list."""

    def __init__(self) -> None:
        self.skipping = False  # the rest of a line that is no JSON
        self.clear()

    def clear(self) -> None:
        self.depth, self.base, self.line, self.elements = 0, 1, 0, 0
        self.in_text, self.key, self.kept = False, b"", bytearray()
        self.passing: int | None = None  # depth outside of the part that is passed over
        self.listed = False

    @property
    def inside(self) -> bool:
        """Whether a value has begun and not ended; between the elements of a list none has."""
        return self.depth > self.listed

    def broken(self, what: str) -> Found:
        """A value that ends where it should not."""
        found = Found(self.line, None, f"{what}: the client may have been stopped while it wrote")
        self.clear()
        return found

    def feed(self, chunk: bytes, line: int) -> Iterator[Found]:
        """Go on with a line, or a part of a long one; yields the values that end in it."""
        position = 0
        if self.in_text:
            rest = _REST.match(chunk)
            assert rest is not None
            position = rest.end()
            self._read_key(chunk[:position], not rest[1])
        at = 0
        for token in _TOKEN.finditer(chunk, position):
            if self.skipping:
                break
            start, end, kind = token.start(), token.end(), chunk[token.start() : token.start() + 1]
            if self.depth == 0 and (kind not in b"[{" or chunk[at:start].strip(b" \t\r\n,")):
                yield self._junk(line)
                break
            if kind == b'"':
                if self.depth == self.base:
                    self.key = b""
                self._read_key(chunk[start + 1 : end], not token[1])
            elif kind in b"[{":
                at = self._open(chunk, at, start, kind, line)
            else:
                closed, at = self._close(chunk, at, end)
                if closed is not None:
                    yield closed
            if self.depth > _DEEPEST:
                yield Found(self.line, None, f"is nested deeper than {_DEEPEST}: no results of a benchmark are")
                self.clear()
                self.skipping = True
        else:
            if self.depth == 0 and not self.skipping and chunk[at:].strip(b" \t\r\n,"):
                yield self._junk(line)
        ends = chunk.endswith(b"\n")
        if ends and self.in_text:
            yield self.broken("is cut off")
        if self.depth and self.passing is None:
            self._keep(chunk[at:])
        self.skipping = self.skipping and not ends

    def _read_key(self, part: bytes, goes_on: bool) -> None:
        """A text, or a part of one that the end of a chunk cuts; the last before a bracket is the key of what opens."""
        self.in_text = goes_on
        if self.depth == self.base:
            self.key = (self.key + (part if goes_on else part[:-1])[:_NAME])[:_NAME]

    def _junk(self, line: int) -> Found:
        self.clear()
        self.skipping = True
        return Found(line, None, "is no JSON: give a benchmark's results, a run a line")

    def _open(self, chunk: bytes, at: int, start: int, kind: bytes, line: int) -> int:
        """A bracket that opens; returns from where on the chunk is to be kept."""
        if self.depth == 0:
            self.listed, self.line, at = kind == b"[", line, start
            self.base = 1 + self.listed
        if self.listed and self.depth == 1:
            self.line, self.elements, at = line, self.elements + 1, start
            self.kept.clear()
        if self.depth == self.base and self.passing is None and self.key.decode("ascii", "replace") not in NESTED:
            self._keep(chunk[at:start] + b"null")
            self.passing = self.depth
        self.depth += 1
        return at

    def _close(self, chunk: bytes, at: int, end: int) -> tuple[Found | None, int]:
        """A bracket that closes: the value that it ends, if so, and from where on the chunk is to be kept."""
        self.depth -= 1
        if self.passing is not None:
            if self.depth == self.passing:
                self.passing, at = None, end
            return None, at
        if self.depth == 0 and self.listed:
            found = None if self.elements else Found(self.line, [])
            self.clear()
            return found, end
        if self.depth == self.base - 1:
            self._keep(chunk[at:end])
            found = _parsed(bytes(self.kept), self.line)
            self.kept.clear()
            if self.depth == 0:
                self.clear()
            return found, end
        return None, at

    def _keep(self, part: bytes) -> None:
        """Up to a byte more than may be kept, by which a value that is too large is told."""
        self.kept += part[: MOST_KEPT + 1 - len(self.kept)]


def _parsed(text: bytes, line: int) -> Found:
    if len(text) > MOST_KEPT:
        return Found(
            line, None, f"is larger than {MOST_KEPT >> 20} MiB without its lists: give the client's own results"
        )
    try:
        return Found(line, json.loads(text))
    except (ValueError, RecursionError) as error:
        return Found(line, None, f"is no JSON ({str(error).split(chr(10))[0][:80]}): give the line as it was written")
