"""How attention over latents divides a batch: the numbers that its kernel (`layouts.mla.hopper`) and its price share.

The kernel's requests lie one behind the other on a line of tiles, which is cut into equal shares (`hopper.schedule`).
The price is that of requests of one length.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jaxtyping import ArrayLike

from hw.arithmetic import Arithmetic
from layouts.cut import Scalar

ROWS: Final = 64  # query rows of a block: what one product instruction takes
TILE: Final = 64  # tokens of a step
START: Final = 2  # what a piece costs beside its tiles, in tiles
CUT: Final = 8  # what it costs to cut every request: a piece more a gang, and the merge
MOST_GANGS: Final = 256  # that are priced: more than any chip has multiprocessors (a test)


class Shares(NamedTuple):
    """What the kernel does with requests of one length.

    `blocks` with work of their own; tiles that they pass, with what pieces cost besides, over tiles that there are
    (`passed`); pieces of requests that were cut, a request of all (`pieces`); and the part of all that were (`cut`).
    """

    blocks: Scalar
    passed: Scalar
    pieces: Scalar
    cut: Scalar


def share_length(length: Any, each: Any, alike: Any, gangs: Any, quotient: Callable[[Any, Any], Any]) -> Any:
    """Length of the share of a gang: as short as can be, or some requests where they are all `alike`, `each` so long,
    and that makes it no longer than cutting them would take. `quotient` rounds up."""
    shortest = quotient(length, gangs)
    whole = quotient(shortest, each) * each
    return jnp.where(alike & (whole - shortest <= CUT), whole, shortest)


def shares_of(ar: Arithmetic, requests: Scalar, rows: Scalar, tokens: Scalar, multiprocessors: ArrayLike) -> Shares:
    """The shares of so many requests of `rows` query rows over `tokens` tokens each."""
    groups = ar.ceil(rows / ROWS)
    gangs = ar.maximum(ar.floor(jnp.asarray(multiprocessors, dtype=float) / groups), 1.0)
    tiles = ar.maximum(ar.ceil(tokens / TILE), 1.0)
    each = tiles + START
    length = requests * each
    share = share_length(length, each, True, gangs, lambda a, b: ar.ceil(a / b))
    used = ar.ceil(length / share)
    ends = jnp.arange(1.0, MOST_GANGS) * share
    inside = ends - jnp.floor(ends / each) * each - START  # of the request where a share ends: behind its first tile
    cuts = (ends < length) & (inside > 0)
    opened = cuts & (inside <= share)  # by the first share that ends in it
    cut, parted = (jnp.where(x, 1.0, 0.0).sum() / requests for x in (opened, cuts))
    return Shares(
        blocks=groups * used,
        passed=share * used / (requests * tiles),
        pieces=parted + cut,
        cut=cut,
    )
