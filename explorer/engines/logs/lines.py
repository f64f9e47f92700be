"""Lines of a file of any size that hold one of some markers, in bounded memory."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO, Final

from explorer.engines.logs.patterns import LONGEST_LINE

_BLOCK: Final = 1 << 20
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Lines:
    """Line numbers, from 1, and texts of the lines that hold a marker. `count`: lines seen; `cut`: of how many the end
    was dropped because they are longer than is kept."""

    def __init__(self, file: BinaryIO, markers: tuple[str, ...]):
        self._file = file
        self._markers = tuple(marker.encode() for marker in markers)
        self.count = 0
        self.cut = 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        carry, dropping = b"", False
        for block in _blocks(self._file):
            # A bar of progress is redrawn after a carriage return: what comes after it is a line of its own, though
            # not in the count, which is that of editors.
            data = carry + block
            at = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            body, carry = data[:at], data[at:]
            if at:
                body = body[_end_of_first(body) :] if dropping else body
                dropping = False
                yield from self._in(body, data[: at - len(body)].count(b"\n"))
            if len(carry) > LONGEST_LINE:
                if not dropping:
                    yield from self._in(carry[:LONGEST_LINE], 0)
                    self.cut += 1
                carry, dropping = b"", True
        if not dropping:
            yield from self._in(carry, 0)
        self.count += bool(carry) or dropping

    def _in(self, body: bytes, before: int) -> Iterator[tuple[int, str]]:
        """Of whole lines; `before`: line ends that came before them since the last call."""
        self.count += before
        found = [marker for marker in self._markers if marker in body]
        if not found:
            self.count += body.count(b"\n")
            return
        lines = body.split(b"\n")
        for number, line in enumerate(lines, self.count + 1):
            if any(marker in line for marker in found):
                parts = [part for part in line.split(b"\r") if any(marker in part for marker in found)]
                self.cut += sum(len(part) > LONGEST_LINE for part in parts)
                yield from ((number, part[:LONGEST_LINE].decode("utf-8", "replace")) for part in parts)
        self.count += len(lines) - 1


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    first = file.read(_BLOCK)
    blocks = _chain(first, file)
    if first.startswith(_WIDE):  # what a Windows shell writes
        return (text.encode("utf-8", "replace") for text in codecs.iterdecode(blocks, "utf-16", "replace"))
    return blocks


def _chain(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    block = first
    while block:
        yield block
        block = file.read(_BLOCK)


def _end_of_first(body: bytes) -> int:
    ends = [at for at in (body.find(b"\n"), body.find(b"\r")) if at >= 0]
    return min(ends) + 1
