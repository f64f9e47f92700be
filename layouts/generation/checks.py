"""What a session is asked, checked before anything of it changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from hw.errors import MeshwrightError
from layouts.kernels import PLAIN
from layouts.paged import RUN


class SessionError(MeshwrightError):
    """A call that does not follow from those before it, or rows that are none. The session is as it was."""


def require_whole(name: str, value: int, least: int, most: int | None = None) -> None:
    """SessionError unless `value` is in [least, most]."""
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"{least} to {most}"
        raise SessionError(f"{name} = {value} is out of range: give {bound}")


def require_runs(page: int, form: str) -> None:
    """SessionError where the kernel that attention runs would not find tokens in pages of so many rows."""
    if form != PLAIN and page % RUN:
        raise SessionError(
            f"pages of {page} rows: attention in form {form} reads {RUN} at a time; give a page of a multiple of {RUN}"
        )


def require_rows(rows: Mapping[Any, Sequence[int]], vocab: int) -> int:
    """The most tokens of any request. SessionError where there is no request, one has no token, or a token is not
    of the vocabulary, whose embedding would be that of another or none."""
    if not rows or not all(map(len, rows.values())):
        raise SessionError("a step needs requests with at least one token each: leave out those without")
    strange = next((token for tokens in rows.values() for token in tokens if not 0 <= token < vocab), None)
    if strange is not None:
        raise SessionError(f"token {strange} is not in the vocabulary: give 0 to {vocab - 1}")
    return max(map(len, rows.values()))


def require_equal(rows: Mapping[Any, Sequence[int]], width: int) -> None:
    """SessionError unless every request has `width` rows."""
    least = min(map(len, rows.values()))
    if least < width:
        raise SessionError(f"one request has {least} rows to verify and another {width}: pad the drafts to one width")


def require_accepted(accepted: Mapping[Any, int], verifying: Mapping[Any, int], width: int) -> None:
    """SessionError unless each request of `accepted` was verified, with as many rows at least."""
    if not verifying:
        raise SessionError("no request has verified tokens: verify some before you accept")
    for request, count in accepted.items():
        if request not in verifying:
            raise SessionError(f"{request} has no verified tokens: leave it out")
        require_whole(f"accepted tokens of {request}", count, 0, width)
