"""How many rows each expert of a rank got in a published benchmark of grouped GEMMs: its routing, done again.

The benchmark draws no tokens. `balanced` deals them out in turn; `power_law_<a>` draws how popular each expert is and
moves the busiest rank to the front, which is the one that is timed. Both are read off from the times: one expert more
is one weight more to read, and at few rows the steps of the tables are whole numbers of weights.
"""

from functools import cache

import numpy as np
from jaxtyping import Int

Loads = Int[np.ndarray, "experts"]

# Draws of the popularity that are averaged over; the benchmark makes one, with a seed that it does not state.
_DRAWS = 6


@cache
def mean_load(distribution: str, tokens: int, experts: int, topk: int, ranks: int) -> tuple[float, float]:
    """Experts that get a row and rows in all on the timed rank; means over draws where the routing is drawn."""
    held = experts // ranks
    if distribution == "balanced":
        draws = [dealt(tokens, experts, topk)[:held]]
    else:
        exponent = float(distribution.removeprefix("power_law_"))
        draws = [_busiest(drawn(seed, tokens, experts, topk, exponent), ranks) for seed in range(_DRAWS)]
    return float(np.mean([np.count_nonzero(d) for d in draws])), float(np.mean([d.sum() for d in draws]))


def dealt(tokens: int, experts: int, topk: int) -> Loads:
    """Rows of each expert: token i takes every (experts / topk)-th expert, beginning with the i-th (fewer tokens than
    that: spread over it)."""
    stride = experts // topk
    first = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride // tokens
    chosen = (first[:, None] + stride * np.arange(topk)) % experts
    return np.bincount(chosen.ravel(), minlength=experts)


def dealt_in_groups(tokens: int, experts: int, topk: int, expert_groups: int, kept: int) -> Loads:
    """`dealt`, and then a router that may only choose from `kept` groups of experts.

    All groups score alike, so the first ones win, and with them one choice of each token in each. The choices that it
    lost in other groups go to the experts that stand first, alike for every token: these get nearly all rows.
    """
    width = experts // expert_groups
    first = np.arange(tokens) % width if tokens >= width else np.arange(tokens) * width // tokens
    loads = np.bincount((first[:, None] + width * np.arange(kept)).ravel(), minlength=experts)
    lost = topk - kept
    for expert in range(lost + 1):
        free = first != expert
        loads[expert] += np.count_nonzero(free if expert < lost else free & (first < lost))
    return loads


def drawn(seed: int, tokens: int, experts: int, topk: int, exponent: float) -> Loads:
    """Rows of each expert where popularity is drawn from a power law, rounded so that none is lost.

    Popularity spans 1 to 0.8 x tokens where there are more choices than experts, else 0.01 to 2.
    """
    choices = tokens * topk
    low, high = (1.0, 0.8 * tokens) if choices > experts else (0.01, 2.0)
    power = 1.0 - exponent
    uniform = np.random.default_rng(seed).random(experts)
    popularity = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    share = popularity / popularity.sum() * choices
    loads = np.floor(share).astype(int)
    loads[np.argsort(loads - share, kind="stable")[: choices - loads.sum()]] += 1
    return loads


def _busiest(loads: Loads, ranks: int) -> Loads:
    by_rank = loads.reshape(ranks, -1)
    return by_rank[by_rank.sum(axis=1).argmax()]
