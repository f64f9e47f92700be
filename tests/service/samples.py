"""Servers whose steps take known seconds, for formulas that are checked by hand and by simulation."""

from typing import Any

import numpy as np

from explorer.service.engine import Engine, Policy
from explorer.service.steps import Steps

NOTHING = 1e-15  # seconds: an engine that adds nothing still has slopes


def level_steps(seconds: float, capacity: float = 1e9) -> Steps:
    """Decode steps that take as long whatever runs; `capacity` requests fit."""
    loads = np.array([1.0, 2.0, 4096.0])
    each = np.full(3, seconds)
    return Steps(loads, each, 0.8 * each, 1.25 * each, 0.1 * each, np.ones(3), np.minimum(loads, capacity))


def token_steps(seconds: float) -> Steps:
    """Prefill steps that take as long for every token."""
    loads = np.array([1.0, 64.0, 4096.0])
    each = loads * seconds
    return Steps(loads, each, 0.8 * each, 1.25 * each, 0.1 * each, np.full(3, NOTHING), loads)


def plain_engine(policy: Policy = Policy.PREFILL_FIRST, chunk: int = 512, **changes: Any) -> Engine:
    """An engine that adds nothing to the steps, with changes."""
    values: dict[str, Any] = {
        "fixed_share": 1.0, "step": NOTHING, "request": NOTHING, "prefill_stretch": 1.0, "launch": NOTHING,
        "arrival": NOTHING, "spread_tpot": 0.1, "spread_ttft": 0.5, "chunk_by_group": False,
    }  # fmt: skip
    return Engine(name="plain", policy=policy, chunk=chunk, **{**values, **changes})
