"""The article's steps priced on a machine that is being fitted: traced, in the units of the claims."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments.seed_claims.article import DP2, DP16, FULL, Deployment, tables
from experiments.seed_claims.exchanges import GAP
from explorer.evaluate import Case
from explorer.priced import Parts, parts_of
from explorer.residents.budget import Budget
from hw.machine import Machine
from hw.units import GB
from layouts.cut import Cut, cut_of
from layouts.load import Load as EngineLoad

Load = tuple[Deployment, int]  # a deployment and its instance concurrency
LOADS: Final[Sequence[Load]] = ((DP16, 128), (DP16, 256), (DP16, FULL), (DP2, 32), (DP2, 256))
KDA, MLA = "KDA + LatentMoE", "MLA + LatentMoE"
_GATHER: Final = "weight_all_gather"


class Asked(NamedTuple):
    """What is priced, `LOADS` along the leading axis of every leaf."""

    load: EngineLoad
    budget: Budget
    cut: Cut
    overlap: Array


def asked() -> Asked:
    """All loads of the article that a row speaks of."""
    cases = [replace(d.request, concurrency=c).case() for d, c in LOADS]
    each = [
        Asked(case.load, case.budget, cut_of(d.layout), jnp.asarray(case.overlap))
        for (d, _), case in zip(LOADS, cases, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *each)


class Steps:
    """All loads priced at once."""

    def __init__(self, machine: Machine, wanted: Asked):
        self._parts: Parts = jax.vmap(
            lambda one: parts_of(Case(one.load, one.budget, machine, overlap=one.overlap), tables(), one.cut)
        )(wanted)
        table = tables().step
        self._table = table
        self._place = {
            (table.block_names[b], op): i for i, (b, op) in enumerate(zip(table.block, table.names, strict=True))
        }

    def us(self, load: Load, block: str, op: str, alone: bool = False) -> Array:
        """Microseconds of one execution of an op: on average over the step, or without the other stream."""
        parts = self._parts.alone if alone else self._parts.seconds
        return parts[LOADS.index(load), self._place[block, op]] * 1e6

    def contention(self, load: Load, block: str, op: str) -> Array:
        """By which fraction longer an op takes beside the other stream."""
        return self._parts.contention[LOADS.index(load), self._place[block, op]]

    def ms(self, load: Load) -> Array:
        """Milliseconds of the step."""
        return self._parts.schedule.step[LOADS.index(load)] * 1e3

    def total_ms(self, load: Load, *ops: str) -> Array:
        """Milliseconds a step of the ops of these names, at all positions that run (or gather) them."""
        at, places = LOADS.index(load), [i for (_, op), i in self._place.items() if op in ops]
        gathered = self._parts.gathered[at]
        runs = [
            jnp.where(self._table.gathers[i] > 0, gathered, 1.0) @ (self._table.sequence == self._table.block[i])
            for i in places
        ]
        return jnp.sum(self._parts.seconds[at, np.array(places)] * jnp.stack(runs)) * 1e3

    def copies_ms(self, load: Load) -> Array:
        """Milliseconds a step in which a copy from a peer runs: the gaps between copies taken off."""
        copies = self._parts.gathered[LOADS.index(load)].sum() * (load[0].layout.weight_shard - 1)
        return self.total_ms(load, _GATHER) - copies * GAP / 1e3

    def bandwidth(self, load: Load, alone: bool = False) -> Array:
        """GB/s of one copy from a peer in the largest layer, the gap after it taken off."""
        peers = load[0].layout.weight_shard - 1
        seconds = (self.us(load, KDA, _GATHER, alone) / peers - GAP) / 1e6
        return self._parts.sent[LOADS.index(load), self._place[KDA, _GATHER]] / peers / seconds / GB
