"""Lowered tables against the expressions themselves, over whole numbers and fractions: every op and ledger line."""

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from explorer.residents.lines import fixed_lines, kv_bytes_a_token
from hw.arithmetic import Exact, Smooth
from hw.compat import x64
from hw.programs import compiled
from layouts.blocks import step_blocks
from layouts.expression import ONE, ZERO, Expr, total
from layouts.lowering import Lowered
from layouts.models import Model
from tests.helpers import PRESETS
from tests.layouts.oracle import Case, Number, values
from tests.spaces import model_of, space

COLUMNS = ("flops", "bytes", "share", "payload", "size", "stride")

_evaluate = compiled(Lowered.evaluate)
_whole = compiled(Lowered.whole)
_bytes = compiled(Lowered.bytes)


def as_floats(numbers: dict[str, Number]) -> dict[str, np.ndarray]:
    return {name: np.asarray(float(number)) for name, number in numbers.items()}


def op_expressions(model: Model, prefill: bool) -> list[Expr]:
    ops = [op for block in step_blocks(model, prefill).blocks for op in block.ops]
    return [e for op in ops for e in (*(getattr(op, c) for c in COLUMNS), *op.shape.values())]


def byte_expressions(model: Model, prefill: bool) -> list[Expr]:
    staging = [block.staging for block in step_blocks(model, prefill).blocks]
    return [*(line.size for line in fixed_lines(model, prefill)), *staging, kv_bytes_a_token(model)]


def situations(name: str, prefill: bool, count: int) -> Sequence[dict[str, Number]]:
    """Quantities of random valid layouts of 8 to 64 GPUs under random loads, with those of a random budget."""
    rng = random.Random(name)
    found = []
    for _ in range(count):
        valid = space(name, rng.choice([8, 24, 64]), 4, 16, prefill)
        case = Case(
            rng.randint(1, 1 << 20), rng.randint(1, 5000), 1 if prefill else rng.randint(1, 8), (1, 8, 64, 512), 148,
            prefill=prefill,
        )  # fmt: skip
        layout = valid.layout(rng.randrange(len(valid)))
        quantities = values(model_of(name), layout, case)
        wanted = quantities["requests"] * layout.pp
        quantities["slots"] = wanted + rng.randint(1, 40)
        quantities["draft_window"] = rng.randint(1, 9000)
        quantities["dispatch_tokens"] = rng.randint(1, 2000)
        quantities["global_kv_tokens"] = wanted * case.context
        found.append(quantities)
    return found


@pytest.mark.parametrize("prefill", [False, True], ids=["decode", "prefill"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_op_and_line_of_a_model(name: str, prefill: bool) -> None:
    model = model_of(name)
    ops, lines = op_expressions(model, prefill), byte_expressions(model, prefill)
    with x64():
        for quantities in situations(name, prefill, 8):
            numbers = as_floats(quantities)
            exact = {n: Fraction(float(v)) for n, v in quantities.items()}
            np.testing.assert_allclose(
                _evaluate(Lowered(ops), numbers), [float(e.evaluate(exact)) for e in ops], rtol=1e-12
            )
            assert _whole(Lowered(lines), numbers).tolist() == [e.bytes(exact) for e in lines]


@pytest.mark.parametrize("name", ["kimi-k3@article", "qwen3-235b-a22b"])
def test_bytes_are_whole_in_the_exact_arithmetic_and_real_in_the_smooth_one(name: str) -> None:
    lines = byte_expressions(model_of(name), False)
    quantities = situations(name, False, 1)[0]
    exact = {n: Fraction(float(v)) for n, v in quantities.items()}
    with x64():
        whole = _bytes(Lowered(lines), Exact(), as_floats(quantities))
        real = _bytes(Lowered(lines), Smooth(1e-3), as_floats(quantities))
    assert whole.tolist() == [e.bytes(exact) for e in lines]
    np.testing.assert_allclose(real, [float(e.evaluate(exact)) for e in lines], rtol=1e-12)


NAMES: list[str] = ["a", "b", "c"]
TERMS = st.tuples(
    st.fractions(-1000, 1000, max_denominator=64).filter(bool),
    st.dictionaries(st.sampled_from(NAMES), st.integers(-2, 2)),
)


def _expression(terms: Sequence[tuple[Fraction, Mapping[str, int]]]) -> Expr:
    return total(
        math.prod(
            [Expr.symbol(n) if p > 0 else ONE / Expr.symbol(n) for n, p in powers.items() for _ in range(abs(p))],
            start=Expr.of(coefficient),
        )
        for coefficient, powers in terms
    )


@given(st.lists(st.lists(TERMS, max_size=3).map(_expression), max_size=12), st.tuples(*[st.integers(1, 60)] * 3))
@settings(max_examples=3)
def test_any_table_of_expressions(table: list[Expr], numbers: tuple[int, int, int]) -> None:
    """Equal expressions, zero, negative coefficients and powers included; not compiled, for every table differs."""
    named: dict[str, Number] = dict(zip(NAMES, numbers, strict=True))
    table = [*table, ZERO, *table[:1]]
    with x64():
        lowered = Lowered(table)
        assert lowered.whole(as_floats(named)).tolist() == [e.bytes(named) for e in table]
        found = lowered.evaluate(as_floats(named))
    scale = sum(abs(float(Expr((t,)).evaluate(named))) for e in table for t in e.terms)
    np.testing.assert_allclose(found, [float(e.evaluate(named)) for e in table], rtol=1e-12, atol=1e-12 * scale)


def test_whole_bytes_survive_where_float64_would_round() -> None:
    """2^53 + 1 has no float64; as a product of two quantities and a sum it is whole all the same."""
    a, b = Expr.symbol("a"), Expr.symbol("b")
    with x64():
        found = Lowered([a * b + 1, a * b / 3]).whole(as_floats({"a": 2**27, "b": 2**26}))
    assert found.tolist() == [2**53 + 1, -(-(2**53) // 3)]


def test_a_quantity_without_a_value_is_named() -> None:
    with x64(), pytest.raises(KeyError, match="quantities without a value: b"):
        Lowered([Expr.symbol("a") * Expr.symbol("b")]).evaluate(as_floats({"a": 1}))
