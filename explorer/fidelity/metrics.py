"""Scores of predictions against measurements, as fractions."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

RANKED_GAP: Final = 0.03  # measurements nearer to each other than this do not rank


@dataclass(frozen=True)
class Scores:
    """Of the relative error e = predicted / measured - 1: mean, median and 90th percentile of |e|, and the mean of e.

    `coverage` is the share of measurements inside the predicted range.
    """

    mape: float
    median: float
    bias: float
    p90: float
    coverage: float


def scores(
    measured: Float[np.ndarray, " runs"],
    predicted: Float[np.ndarray, " runs"],
    low: Float[np.ndarray, " runs"],
    high: Float[np.ndarray, " runs"],
) -> Scores | None:
    """The scores of positive figures; None of no run. The ends of a range belong to it."""
    if not measured.size:
        return None
    error = predicted / measured - 1
    off = np.abs(error)
    inside = (low <= measured) & (measured <= high)
    return Scores(*map(float, (off.mean(), np.median(off), error.mean(), np.quantile(off, 0.9), inside.mean())))


def ranking(
    measured: Float[np.ndarray, " runs"],
    predicted: Float[np.ndarray, " runs"],
    comparable: Int[np.ndarray, " runs"],
    layout: Int[np.ndarray, " runs"],
) -> tuple[float | None, int]:
    """(share of pairs that are predicted in the measured order, pairs); None of no pair, half a point for a tie.

    A pair is two runs with the same number in `comparable` and different ones in `layout` whose measurements differ by
    more than `RANKED_GAP` of the smaller.
    """
    right = pairs = 0.0
    for key in np.unique(comparable):
        mine = np.flatnonzero(comparable == key)
        order = np.sign(_differences(measured[mine]))
        pair = _ranked(measured[mine]) & (layout[mine][:, None] != layout[mine][None, :])
        agree = 0.5 * (1 + order * np.sign(_differences(predicted[mine])))
        right += float(agree[pair].sum())
        pairs += float(pair.sum())
    return (right / pairs if pairs else None), int(pairs)


def _differences(values: Float[np.ndarray, " runs"]) -> Float[np.ndarray, "runs runs"]:
    return values[:, None] - values[None, :]


def _ranked(measured: Float[np.ndarray, " runs"]) -> Bool[np.ndarray, "runs runs"]:
    """Pairs far enough apart, each once (above the diagonal)."""
    gap = np.abs(_differences(measured)) / np.minimum(measured[:, None], measured[None, :])
    return np.triu(gap > RANKED_GAP, 1)
