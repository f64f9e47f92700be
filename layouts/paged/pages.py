"""Where the tokens of a request lie in a rank's pool, and which of them each of its rows sees."""

from typing import Final, NamedTuple

from jaxtyping import Array, Int

RUN: Final = 64  # tokens of a request that lie together in a pool: what every form takes


class Pages(NamedTuple):
    """The tokens that a rank holds of each request, in order of position, and how many of them each of its rows sees.

    `starts` are the pool rows of its runs of tokens that lie together; those behind the last seen may be any row.
    A row sees its tokens before `limits`, from `lows` on where there is a window.
    """

    starts: Int[Array, "requests runs"]
    limits: Int[Array, "requests verify"]
    lows: Int[Array, "requests verify"] | None = None
