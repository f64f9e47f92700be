"""The curves of article 000's engine, fitted to the rows of the claims that are marked `fit`, and to nothing else.

    python -m experiments.refit_article            prints the figures and how each row comes out
    python -m experiments.refit_article --write    and writes hw/curves/b200@article.toml

A figure starts at the public table's and is pulled there by a prior; the rows that it is fitted to are named beside it.
Under a minute on two cores. No `check` row is read (a test says so).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import typer
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from experiments.seed_claims.article import DP2, DP16, FULL, Deployment, tables
from experiments.seed_claims.claims import Claim, read_claims
from experiments.seed_claims.exchanges import GAP
from explorer.priced import Parts, parts_of
from hw.compat import in_x64, use_compilation_cache
from hw.figures import CURVES, unit_of
from hw.machine import Machine, load_machine
from hw.units import GB
from hw.work import COLLECTIVES, FAMILIES, RATES
from layouts.cut import cut_of

CHIP: Final = "b200"
FILE: Final = CURVES / "b200@article.toml"
KDA, MLA = "KDA + LatentMoE", "MLA + LatentMoE"
Load = tuple[Deployment, int]
LOADS: Final[Sequence[Load]] = ((DP16, 128), (DP16, 256), (DP16, FULL), (DP2, 32), (DP2, 256))
_DIGITS: Final = 4


@dataclass(frozen=True)
class Free:
    """A figure to be fitted: the curves it stands in (`family.field.rate`), where it starts, and how firmly (the prior's
    standard deviation of its logarithm). Figures of several curves are scaled together."""

    paths: tuple[str, ...]
    claims: str
    why: str
    loose: float
    start: float | None = None


class Steps:
    """Priced steps of one machine by deployment and load, in the units of the claims."""

    def __init__(self, parts: Mapping[Load, Parts]):
        self._parts = parts
        table = tables().step
        self._place = {
            (table.block_names[b], op): i for i, (b, op) in enumerate(zip(table.block, table.names, strict=True))
        }
        self._counts = np.bincount(table.sequence, minlength=len(table.block_names))[table.block]

    def us(self, load: Load, block: str, op: str, alone: bool = False) -> Array:
        """Microseconds of one execution, beside the other stream or as if alone."""
        parts = self._parts[load]
        return (parts.alone if alone else parts.seconds)[self._place[block, op]] * 1e6

    def ms(self, load: Load) -> Array:
        """Milliseconds of the step."""
        return self._parts[load].schedule.step * 1e3

    def of_op(self, load: Load, *ops: str) -> Array:
        """Milliseconds a step of ops by name."""
        chosen = [i for (_, op), i in self._place.items() if op in ops]
        return jnp.sum(self._parts[load].seconds[np.array(chosen)] * self._counts[np.array(chosen)]) * 1e3

    def ptop_ms(self, load: Load) -> Array:
        """Milliseconds a step of copies from peers without the gaps between them."""
        gathering = self._parts[load].gathered.sum()
        gaps = gathering * (load[0].layout.weight_shard - 1) * GAP / 1e3
        busy = [
            self._parts[load].seconds[i] * jnp.where(self._parts[load].sent[i] > 0, self._runs(load, block), 0.0)
            for (block, op), i in self._place.items()
            if op == "weight_all_gather"
        ]
        return sum(busy, start=jnp.zeros(())) * 1e3 - gaps

    def bandwidth(self, load: Load, alone: bool = False) -> Array:
        """GB/s of one copy from a peer in the largest layer, the gap after it taken off."""
        peers = load[0].layout.weight_shard - 1
        seconds = (self.us(load, KDA, "weight_all_gather", alone) / peers - GAP) / 1e6
        return self._parts[load].sent[self._place[KDA, "weight_all_gather"]] / peers / seconds / GB

    def _runs(self, load: Load, block: str) -> Array:
        table = tables().step
        at = np.array([table.block_names[b] == block for b in table.sequence])
        return jnp.sum(self._parts[load].gathered * at)
