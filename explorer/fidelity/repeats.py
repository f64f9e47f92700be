"""What the table says more than once: rows copied, runs restated, inputs measured again; and how far those agree."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

import numpy as np
from jaxtyping import Float

from explorer.fidelity.runs import Pool, Run

# Reruns of the same software agree within 1.7 % in TPOT; from 7 % on, groups of equal inputs hold runs with and
# without speculation. The widest gap below a factor of 1.25 lies between the two.
AMBIGUOUS: Final = 1.05
_DECISIVE: Final = "tpot"  # TTFT differs between reruns by more than speculation moves it


@dataclass(frozen=True)
class Distinct:
    """Runs that are left, `repeated` rows with equal inputs and figures, `restated` ones with equal figures only."""

    runs: tuple[Run, ...]
    repeated: int
    restated: int


@dataclass(frozen=True)
class Noise:
    """Spread of one quantity within groups of equal inputs: |value / median of the group - 1|.

    `factor` is the largest ratio of two values of a group.
    """

    groups: int
    runs: int
    median: float
    p90: float
    factor: float


def distinct(runs: Sequence[Run]) -> Distinct:
    """Each run once. Rows with the same figures for the same load on the same machine are one run; where they state it
    differently, the row that leaves least blank is kept, the first of equals."""
    by_inputs: dict[Hashable, Run] = {}
    for run in runs:
        by_inputs.setdefault((run.inputs, _figures(run)), run)
    by_figures: dict[Hashable, Run] = {}
    for run in by_inputs.values():
        kept = by_figures.get(_occasion(run))
        if kept is None or _stated(run) > _stated(kept):
            by_figures[_occasion(run)] = run
    return Distinct(tuple(by_figures.values()), len(runs) - len(by_inputs), len(by_inputs) - len(by_figures))


def groups(runs: Iterable[Run]) -> tuple[tuple[Run, ...], ...]:
    """Runs with equal inputs, in the order of the first of each."""
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(run.inputs, []).append(run)
    return tuple(map(tuple, found.values()))


def ambiguous(runs: Sequence[Run]) -> tuple[bool, ...]:
    """Whether a run's inputs do not say what was run: equal inputs, and TPOT apart by more than `AMBIGUOUS`.

    This parts the scores only; nothing is inferred about a run from what was measured.
    """
    apart = {group[0].inputs for group in groups(runs) if _factor(_values(group, _DECISIVE)) > AMBIGUOUS}
    return tuple(run.inputs in apart for run in runs)


def of_ambiguous_configuration(runs: Sequence[Run]) -> tuple[bool, ...]:
    """Whether some run of the same configuration is ambiguous, at whatever load: then nobody knows of this one either.

    Whether a server speculates is decided when it starts, not by how many clients come. So runs of one configuration
    are ambiguous, too, where more clients were served with a lower TPOT: those were two servers.
    """
    doubtful = {run.configuration for run, apart in zip(runs, ambiguous(runs), strict=True) if apart}
    by_lengths: dict[Hashable, list[Run]] = {}
    for run in runs:
        by_lengths.setdefault((run.configuration, run.input_tokens, run.output_tokens), []).append(run)
    doubtful |= {alike[0].configuration for alike in by_lengths.values() if _falls(alike)}
    return tuple(run.configuration in doubtful for run in runs)


def _falls(alike: Sequence[Run]) -> bool:
    """Whether TPOT falls by more than `AMBIGUOUS` from some concurrency to a higher one."""
    known = [r for r in alike if r.concurrency is not None and _DECISIVE in r.measured]
    highest = 0.0
    for run in sorted(known, key=lambda r: r.concurrency or 0):
        if run.measured[_DECISIVE] * AMBIGUOUS < highest:
            return True
        highest = max(highest, run.measured[_DECISIVE])
    return False


def noise_floor(runs: Iterable[Run]) -> Mapping[str, Noise]:
    """By quantity, how far repeated measurements of equal inputs lie apart; absent where nothing was repeated."""
    alike = groups(runs)
    quantities = dict.fromkeys(quantity for group in alike for run in group for quantity in run.measured)
    floors = {name: _noise([_values(group, name) for group in alike]) for name in quantities}
    return MappingProxyType({name: floor for name, floor in floors.items() if floor.groups})


def _noise(values: Iterable[Float[np.ndarray, " runs"]]) -> Noise:
    several = [v for v in values if v.size > 1]
    if not several:
        return Noise(0, 0, 0.0, 0.0, 1.0)
    off = np.concatenate([np.abs(v / np.median(v) - 1) for v in several])
    widest = max(map(_factor, several))
    return Noise(len(several), off.size, float(np.median(off)), float(np.quantile(off, 0.9)), widest)


def _values(group: Iterable[Run], quantity: str) -> Float[np.ndarray, " runs"]:
    return np.array([run.measured[quantity] for run in group if quantity in run.measured])


def _factor(values: Float[np.ndarray, " runs"]) -> float:
    return float(values.max() / values.min()) if values.size else 1.0


def _figures(run: Run) -> tuple[tuple[str, str], ...]:
    """What was measured, without the last digits: sources print the same figure differently there (by 1e-15), and
    nothing was measured twice within 1e-4."""
    return tuple(sorted((quantity, f"{value:.9g}") for quantity, value in run.measured.items()))


def _occasion(run: Run) -> Hashable:
    """What one measurement cannot share with another by chance: load, machine, and nine digits of two figures."""
    if len(run.measured) < 2:
        return (run.inputs, _figures(run))
    load = (run.model, run.hardware, run.engine, run.mode, run.phase, run.input_tokens, run.output_tokens)
    return (load, run.concurrency, _figures(run))


def _stated(run: Run) -> int:
    """How much a row says: cells that are not blank, of the run and of its pools."""
    cells: list[object] = [value for value in run.inputs if not isinstance(value, Pool)]
    cells += [getattr(pool, f.name) for pool in run.pools for f in fields(pool)]
    return sum(cell is not None for cell in cells)
