"""Which quantity of a priced step each figure of a `fit` row is."""

from collections.abc import Callable, Mapping
from typing import Final

from jaxtyping import Array

from experiments.article_fit.steps import KDA, MLA, Load, Steps
from experiments.seed_claims.article import DP2, DP16, FULL

Quantity = Callable[[Steps], Array]

_MIDDLE: Final[Load] = (DP16, 128)
_HIGH: Final[Load] = (DP16, 256)
_FULL: Final[Load] = (DP16, FULL)
_GROUPS: Final[Load] = (DP2, 256)
_FEW: Final[Load] = (DP2, 32)


def _us(load: Load, block: str, op: str) -> Quantity:
    return lambda steps: steps.us(load, block, op)


def _copy_alone(load: Load) -> Quantity:
    return lambda steps: steps.bandwidth(load, alone=True)


def _copy_beside(load: Load) -> Quantity:
    """A copy while exchanges use the links."""
    return lambda steps: steps.bandwidth(load, alone=True) / (1.0 + steps.contention(load, KDA, "weight_all_gather"))


def _state_beside(steps: Steps) -> Array:
    """The state kernel while copies run."""
    return _state_alone(steps) * (1.0 + steps.contention(_FULL, KDA, "kda_state"))


def _state_alone(steps: Steps) -> Array:
    return steps.us(_FULL, KDA, "kda_state", alone=True)


# By claim, its figures in order; None where a figure is left out of the fit.
ROWS: Final[Mapping[str, tuple[Quantity | None, ...]]] = {
    "S03": (lambda steps: steps.ms(_FULL),),
    "S04": (lambda steps: steps.ms(_FEW),),
    "S15": (_us(_HIGH, MLA, "mla_decode"),),
    "S16": (_us(_GROUPS, MLA, "mla_decode"),),
    "S17": (_us(_MIDDLE, MLA, "mla_decode"),),
    # the same bytes take 85 us in DP2, and the article has no cause: no figure of a curve could tell the two apart
    "S21": (_us(_HIGH, KDA, "kda_state"), None),
    "S23": (_us(_HIGH, KDA, "qkv_proj"), _us(_GROUPS, KDA, "qkv_proj")),
    "S26": (_us(_GROUPS, KDA, "attention_reduce_scatter"), _us(_GROUPS, MLA, "attention_reduce_scatter")),
    "S30": tuple(lambda steps, at=at: steps.total_ms(at, "dispatch", "combine") for at in (_HIGH, _GROUPS)),
    "S31": (_us(_HIGH, KDA, "w13"), _us(_HIGH, KDA, "w2")),
    "M10": (_us(_GROUPS, KDA, "w13"), _us(_GROUPS, KDA, "w2")),
    "S34": (lambda steps: steps.copies_ms(_HIGH),),
    "S37": (lambda steps: steps.bandwidth(_HIGH), lambda steps: steps.bandwidth(_GROUPS)),
    "M13": (_copy_beside(_GROUPS), _copy_alone(_GROUPS), _copy_beside(_HIGH), _copy_alone(_HIGH)),
    "M14": (_state_beside, _state_alone),
}
