"""Which layers a pipeline stage holds, and which stage is the heaviest."""

from collections.abc import Mapping

import jax
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
    of_kind = np.array([kind.parameters for kind in model.kinds], np.float64)
    weight = of_kind[list(model.kind_of_layer)]
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
    layers = len(kind_of_layer)
    stages = np.log2(np.arange(1, len(bounds) + 1, dtype=np.float64))
    first, last = jax.vmap(jnp.interp, (None, None, 1))(jnp.log2(cut.pp), stages, bounds)
    held = window(first, last, layers)
    sharded = held * window(cut.sharded_first, cut.sharded_last, layers)
    member = np.eye(max(kind_of_layer) + 1)[np.array(kind_of_layer)]
    counts = jnp.stack([held, sharded]) @ member
    return {f"{what}_{k}": counts[i, k] for i, what in enumerate(("layers", "sharded")) for k in range(counts.shape[1])}
