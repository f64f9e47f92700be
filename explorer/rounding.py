"""From relaxed ends to valid layouts: few, distinct, and counted."""

from collections.abc import Iterable, Mapping
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
_NEIGHBOURS: Final = 192
# The keys that move the cost most: layouts that agree in these are tried one after the other, not side by side.
_MAJOR: Final = ("replicas", "pp", "attn_dp", "attn_tp", "attn_cp", "dcp", "ep", "dispatch")

Identity = tuple[int, ...]


def rounded(found: Found, site: Site, most: int) -> tuple[Space, Int[np.ndarray, " rows"]]:
    """Valid layouts near the relaxed ends, and the end that each came from; at most `most`, no two alike in the major
    keys.

    Every end proposes its nearest layout before any proposes its second nearest.
    """
    ends = range(len(found.losses))
    ranked = [nearest_layouts(_target(found.cuts, end), site, _BEAM) for end in ends]
    kept: dict[Identity, tuple[Space, int]] = {}
    for rank in range(_BEAM):
        for end in ends:
            if rank < len(ranked[end]) and len(kept) < most:
                one = ranked[end].take(np.array([rank]))
                kept.setdefault(identities(one, _MAJOR)[0], (one, end))
    return joined([space for space, _ in kept.values()]), np.array([end for _, end in kept.values()])


def neighbours(best: Space, seen: Space, site: Site, most: int, major: bool) -> Space:
    """Up to `most` valid layouts nearest to the one in `best` that are not in `seen`.

    `major`: such as differ from all seen in the keys that move the cost most; otherwise in any key.
    """
    keys = _MAJOR if major else tuple(best.columns)
    target = jax.tree.map(lambda leaf: np.asarray(leaf)[0], best.cuts())
    near = nearest_layouts(_as_target(target), site, _NEIGHBOURS)
    known = set(identities(seen, keys))
    fresh: dict[Identity, int] = {}
    for row, identity in enumerate(identities(near, keys)):
        if identity not in known and len(fresh) < most:
            fresh.setdefault(identity, row)
    return near.take(np.array(list(fresh.values()), np.int64))


def identities(space: Space, keys: Iterable[str]) -> list[Identity]:
    """For each layout its values of some keys."""
    return [tuple(int(value) for value in row) for row in np.stack([space.columns[k] for k in keys], axis=1)]


def joined(spaces: list[Space]) -> Space:
    """Several spaces of the same site as one."""
    return Space({n: np.concatenate([s.columns[n] for s in spaces]) for n in spaces[0].columns})


def _target(cuts: Cut, end: int) -> Mapping[str, Any]:
    """One relaxed end as targets for the beam: a real number a degree, weights a choice."""
    return _as_target(jax.tree.map(lambda leaf: np.asarray(leaf)[end], cuts))


def _as_target(cut: Cut) -> Mapping[str, Any]:
    return {name: getattr(cut, name) for name in Cut.__dataclass_fields__}
