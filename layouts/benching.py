"""What the benches of the op packages share: what an op asks for at one load, in the words that a machine is priced in.

The features of a timed row come from the same formulas as those of a predicted step, so that a curve fitted to the one
holds for the other.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hw.arithmetic import Exact
from hw.compat import in_x64, on_host
from hw.work import EXCHANGE_SHAPES, LAUNCHES, SHAPES, Collective, Work
from layouts.cut import cut_of
from layouts.expression import ONE, ZERO, Expr
from layouts.layout import Layout
from layouts.load import Load
from layouts.op import Op
from layouts.program_side import as_program, program_quantities
from layouts.quantities import Traits, quantities
from layouts.tensor import COMPONENTS, FORMATS, Precision

Values = Mapping[str, float]
BF16 = Precision(dict.fromkeys(COMPONENTS, FORMATS["bf16"]) | {"state": FORMATS["fp32"]})


@dataclass(frozen=True)
class Case:
    """A decode step of one rank that has so many heads and experts of its own: `requests` of `context` tokens, of each
    of which `verify` are verified, and `group` query heads for each KV head, whose keys have `key` values."""

    requests: int
    context: int = 1
    verify: int = 1
    heads: int = 1
    kv_heads: int = 1
    experts: int = 0
    topk: int = 0
    group: int = 1
    key: int = 128

    @property
    def rows(self) -> int:
        """Token rows."""
        return self.requests * self.verify


@functools.cache
@in_x64
def values_of(case: Case, multiprocessors: int, layout: Layout | None = None) -> Values:
    """Every quantity of the case, under a layout (none: one rank alone, all requests of the case its own)."""
    traits = Traits(case.heads, case.kv_heads, case.experts, case.topk, 0, 0, 1, 0, case.group, case.key)
    load = Load(
        float(case.context), float(case.requests), float(case.verify), graph_sizes=np.array([float(case.requests)])
    )
    with on_host():
        found = quantities(Exact(), cut_of(layout or Layout()), load, traits, float(multiprocessors))
        found |= program_quantities(Exact(), found, traits, float(multiprocessors))
    return {name: float(value) for name, value in found.items()}


def asked(ops: Sequence[Op], values: Values) -> Work | Collective:
    """What these ops, all kernels or all exchanges, ask for together, as the program runs them."""
    ours = [op for op in map(as_program, ops) if op is not None]

    def column(of: str) -> np.ndarray:
        return np.array([_evaluated(_stated(op, of), values) for op in ours])

    families = [op.family for op in ours if op.family is not None]
    if families:
        shapes = {name: column(name) for name in SHAPES}
        return Work.of(families, [op.rate for op in ours], column("flops"), column("bytes"), **shapes)
    kinds = [op.collective for op in ours if op.collective is not None]
    return Collective.of(kinds, *(column(name) for name in ("payload", "size", "stride", *EXCHANGE_SHAPES)))


def named(ops: Sequence[Op], *names: str) -> list[Op]:
    """The ops of these names, in the order of the names."""
    by_name = {op.name: op for op in ops}
    return [by_name[name] for name in names]


def _stated(op: Op, name: str) -> Expr:
    if name not in (*SHAPES, *EXCHANGE_SHAPES):
        return getattr(op, name)
    return op.shape.get(name, ONE if name == LAUNCHES else ZERO)


def _evaluated(expression: Expr, values: Values) -> float:
    return float(expression.evaluate(values))  # pyright: ignore[reportArgumentType]  # a float is a fraction, too
