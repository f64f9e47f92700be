"""The memory of one layout without its step: a tenth of the program that prices both, where time is not asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from explorer.evaluate import Case, Tables, holding
from explorer.request import Request
from explorer.residents.budget import Memory
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, in_x64
from hw.programs import kept
from layouts.cut import Cut, cut_of
from layouts.layout import Layout


@dataclass(frozen=True)
class Held:
    """A layout of a request with its quantities and what a GPU holds, as `Priced` has them."""

    request: Request
    layout: Layout
    tables: Tables
    values: Mapping[str, float]
    held: Memory


@in_x64
def held(request: Request, layout: Layout, tables: Tables | None = None) -> Held:
    """The memory of a layout that passed the rules. `tables` may be handed in where several layouts share a model."""
    tables = tables or Tables(request.model, request.prefill, request.holding)
    values, memory = jax.device_get(_hold(request.case(), tables, cut_of(layout)))
    return Held(request, layout, tables, {name: float(value) for name, value in values.items()}, memory)


@kept(COMPILE_TO_RUN_ONCE)
def _hold(case: Case, tables: Tables, cut: Cut) -> Any:
    ar = Exact()
    values = tables.values(ar, cut, case.load, case.machine)
    return values, holding(ar, tables, cut, case, values)
