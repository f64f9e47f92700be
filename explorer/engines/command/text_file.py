"""A text file of a stranger: bounded, regular, UTF-8."""

import pathlib
import stat
from typing import Final

from explorer.engines.command.launch import CommandError

LARGEST: Final = 16 * 2**20
"""Bytes of the largest file that is read."""


def read_text(path: pathlib.Path) -> str:
    """The text of a file. CommandError for one that cannot be read, is too large, or holds no text."""
    name = path.name
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise CommandError(f"{name} is no file: give one that holds a launch command")
        if about.st_size > LARGEST:
            raise CommandError(f"{name} is larger than {LARGEST >> 20} MiB: give the launch command alone")
        with path.open("rb") as opened:
            held = opened.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, CommandError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"{name or str(path)!r} cannot be read ({reason}): give a file that can") from None
    if len(held) > LARGEST:
        raise CommandError(f"{name} is larger than {LARGEST >> 20} MiB: give the launch command alone")
    if b"\0" in held:
        raise CommandError(f"{name} is binary: give a launch command as text")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is no UTF-8 text (byte {error.start}): give a launch command as text") from None
