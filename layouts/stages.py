"""Which layers a pipeline stage holds, and which stage is the heaviest."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from layouts.cut import Cut, window
from layouts.models.model import Model


def stage_bounds(layers: int, stage: int, stages: int) -> tuple[int, int]:
    """First and last layer of a stage: equal parts, the last ones one longer (SGLang `get_pp_indices`)."""
    base, longer = divmod(layers, stages)
    first = stage * base + max(0, stage - (stages - longer))
    return first, first + base - 1 + (stage >= stages - longer)


def heaviest_stages(model: Model) -> Float[np.ndarray, "stages 2"]:
    """For 1, 2, ... stages the bounds of the stage with most parameters (the last of equals: it holds the head)."""
    weight = np.array([layer.parameters for layer in model.layers], np.float64)
    held = np.concatenate([[0.0], np.cumsum(weight)])

    def heaviest(stages: int) -> tuple[int, int]:
        bounds = [stage_bounds(len(weight), s, stages) for s in range(stages)]
        return max(bounds, key=lambda b: (held[b[1] + 1] - held[b[0]], b[0]))

    return np.array([heaviest(stages) for stages in range(1, len(weight) + 1)], np.float64)


def layer_counts(
    cut: Cut, kind_of_layer: tuple[int, ...], bounds: Float[np.ndarray, "stages 2"]
) -> Mapping[str, Float[Array, ""]]:
    """Layers of each kind on the heaviest stage, and how many of them are weight-sharded.

    Between two stage counts the bounds are interpolated, so that both are exact at every valid layout.
    """
    stages = jnp.log2(jnp.arange(1, len(bounds) + 1, dtype=jnp.float64))
    first, last = (jnp.interp(jnp.log2(cut.pp), stages, bounds[:, i]) for i in (0, 1))
    held = window(first, last, len(kind_of_layer))
    sharded = held * window(cut.sharded_first, cut.sharded_last, len(kind_of_layer))
    kinds = np.array(kind_of_layer)
    counts: dict[str, Float[Array, ""]] = {}
    for kind in range(kinds.max() + 1):
        counts[f"layers_{kind}"] = (held * (kinds == kind)).sum()
        counts[f"sharded_{kind}"] = (sharded * (kinds == kind)).sum()
    return counts
