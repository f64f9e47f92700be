"""What is timed on a machine: the benches of every op package, and the exchanges between its devices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import layouts.dense.bench as dense
import layouts.gqa.bench as gqa
import layouts.kda.bench as kda
import layouts.mla.bench as mla
import layouts.moe.bench as moe
import layouts.residual.bench as residual
from explorer.measuring.asked import rows_needed
from explorer.measuring.errors import MeasuringError
from explorer.measuring.machine import Here
from explorer.measuring.rows import owners_of, row_of
from hw.compat import on_host, x64
from hw.measuring import Bench, copies, exchanges
from hw.work import COLLECTIVES, FAMILIES, CollectiveKind, Family

_PACKAGES: Final = (dense, mla, gqa, kda, moe, residual)
_TURNS: Final = 3  # a third of the rows of each curve is timed before the next third of any


def benches_of(here: Here, only: Sequence[str] = (), quick: bool = False) -> list[Bench]:
    """All benches, those of simulated devices on small shapes; or those that tell something about the families and
    kinds of exchange in `only`; the first third of each curve's, but as many as a fit needs, if `quick`.

    In an order that leaves every curve about equally many rows wherever it is cut short, its shapes spread out.
    """
    known = [str(name) for name in (*FAMILIES, *COLLECTIVES)]
    if unknown := [name for name in only if name not in known]:
        raise MeasuringError(f"only {unknown[0]!r} is no family of kernels or kind of exchange: {', '.join(known)}")
    small = not here.real
    with x64(), on_host():
        found = [
            *copies.benches(small=small),
            *exchanges.benches(here.devices, small=small),
            *(bench for package in _PACKAGES for bench in package.benches(int(here.machine.sms), small=small)),
        ]
        owners = {bench.name: tuple(owners_of(_row(bench))) for bench in found}
    wanted = [b for b in found if not only or {o.partition(".")[0] for o in owners[b.name]} & set(only)]
    if not wanted:
        raise MeasuringError(f"only {', '.join(only)}: nothing on this machine is timed for it")
    by_owner: dict[tuple[str, ...], list[Bench]] = {}
    for bench in wanted:
        by_owner.setdefault(owners[bench.name], []).append(bench)
    spread = [[b for first in range(_TURNS) for b in some[first::_TURNS]] for some in by_owner.values()]
    if quick:
        fewest = [max(_needed(name) for name in of) for of in by_owner]
        spread = [some[: max(least, math.ceil(len(some) / _TURNS))] for some, least in zip(spread, fewest, strict=True)]
    placed = [(i / len(some), bench) for some in spread for i, bench in enumerate(some)]
    return [bench for _, bench in sorted(placed, key=lambda pair: pair[0])]


def curves_told(benches: Sequence[Bench], rows: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The families at their rates, and kinds of exchange, that benches or timed rows tell something about."""
    with x64(), on_host():
        return frozenset(owner for row in (*map(_row, benches), *rows) for owner in owners_of(row))


def _row(bench: Bench) -> dict[str, Any]:
    return row_of(bench.name, bench.asks, 0.0)


def _needed(owner: str) -> int:
    name = owner.partition(".")[0]
    return rows_needed(Family(name) if name in FAMILIES else CollectiveKind(name))
