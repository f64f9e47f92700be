"""Into how many pieces the tokens of a request are cut."""

from typing import Final

START_TILES: Final = 3  # what a block does before its first and after its last tile, in tiles
MOST_SPLITS: Final = 64


def split_count(blocks: int, tiles: int, multiprocessors: int) -> int:
    """Pieces a request: the fewest of those that end soonest.

    `blocks` run without a split and pass `tiles` each; a multiprocessor runs one at a time. They run in waves, so that
    cutting one more time helps only where it does not begin a wave: 32 blocks on 132 multiprocessors are cut in 4.
    """
    counts = range(1, min(tiles, MOST_SPLITS) + 1)
    return min(counts, key=lambda count: _tiles_in_turn(blocks * count, tiles, count, multiprocessors))


def _tiles_in_turn(blocks: int, tiles: int, splits: int, multiprocessors: int) -> int:
    waves = -(-blocks // multiprocessors)
    return waves * (-(-tiles // splits) + START_TILES)
