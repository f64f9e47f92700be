"""From relaxed ends to valid layouts: few, distinct, and counted."""

from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
from jaxtyping import Int

from explorer.search import Found
from layouts.cut import Cut
from layouts.enumerate import Space, nearest_layouts
from layouts.rules import Site

MOST_EXACT: Final = 32  # exact evaluations that rounding may spend
_BEAM: Final = 24


def rounded(found: Found, site: Site, most: int = MOST_EXACT) -> tuple[Space, Int[np.ndarray, " rows"]]:
    """Distinct valid layouts near the relaxed ends, the best ends' nearest first, and the end that each came from.

    Every end proposes its nearest layout before any proposes its second nearest.
    """
    ends = len(np.asarray(found.losses))
    ranked = [nearest_layouts(_target(found.cuts, end), site, _BEAM) for end in range(ends)]
    kept: dict[tuple[int, ...], tuple[Space, int]] = {}
    for rank in range(_BEAM):
        for end, space in enumerate(ranked):
            if rank < len(space) and len(kept) < most:
                one = space.take(np.array([rank]))
                kept.setdefault(tuple(int(c[0]) for c in one.columns.values()), (one, end))
    return joined([space for space, _ in kept.values()]), np.array([end for _, end in kept.values()])


def joined(spaces: list[Space]) -> Space:
    """Several spaces of the same site as one."""
    return Space({n: np.concatenate([s.columns[n] for s in spaces]) for n in spaces[0].columns})


def _target(cuts: Cut, end: int) -> Mapping[str, Any]:
    """One relaxed end as targets for the beam: a real number a degree, weights a choice."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[end], cuts)
    return {name: getattr(one, name) for name in Cut.__dataclass_fields__}
