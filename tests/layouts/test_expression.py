"""Expressions are held against arithmetic on fractions: what a formula says is what the numbers say."""

import math
import re
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from layouts.expression import ONE, ZERO, Expr, total

NAMES: tuple[str, ...] = ("a", "b", "c")
VALUES = st.fixed_dictionaries({name: st.fractions(Fraction(1, 12), 12, max_denominator=12) for name in NAMES})
NUMBERS = st.fractions(-9, 9, max_denominator=8)
PRODUCTS = st.builds(
    lambda coefficient, powers: math.prod((_power(n, p) for n, p in powers.items()), start=Expr.of(coefficient)),
    NUMBERS.filter(bool),
    st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 3)),
)
EXPRESSIONS = st.lists(PRODUCTS, max_size=4).map(total)


def _power(name: str, power: int) -> Expr:
    symbol = Expr.symbol(name)
    return math.prod([symbol] * power, start=ONE) if power >= 0 else math.prod([ONE / symbol] * -power, start=ONE)


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, VALUES)
def test_sums_and_products_are_those_of_the_values(a: Expr, b: Expr, c: Expr, values: dict[str, Fraction]) -> None:
    x, y, z = (e.evaluate(values) for e in (a, b, c))
    assert (a + b).evaluate(values) == x + y
    assert (a * b).evaluate(values) == x * y
    assert (a * (b + c)).evaluate(values) == x * (y + z)


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_ring_laws_hold_term_by_term(a: Expr, b: Expr, c: Expr) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a + ZERO == a == a * ONE
    assert a * 0 == ZERO
    assert a + a * -1 == ZERO


@given(EXPRESSIONS, PRODUCTS, NUMBERS, VALUES)
def test_division_undoes_multiplication(a: Expr, p: Expr, number: Fraction, values: dict[str, Fraction]) -> None:
    assert a * p / p == a
    assert (a / p).evaluate(values) == a.evaluate(values) / p.evaluate(values)
    assert (number / p).evaluate(values) == number / p.evaluate(values)


@given(EXPRESSIONS, PRODUCTS, PRODUCTS, VALUES)
def test_substitution_is_simultaneous(e: Expr, for_a: Expr, for_b: Expr, values: dict[str, Fraction]) -> None:
    replaced = e.substitute({"a": for_a, "b": for_b})
    swapped = {**values, "a": for_a.evaluate(values), "b": for_b.evaluate(values)}
    if all(swapped.values()):
        assert replaced.evaluate(values) == e.evaluate(swapped)


def test_a_sum_may_replace_what_multiplies_but_not_what_divides() -> None:
    a, b, c = map(Expr.symbol, NAMES)
    assert (a * a).substitute({"a": b + c}) == b * b + 2 * b * c + c * c
    with pytest.raises(TypeError, match="division by a sum"):
        (ONE / a).substitute({"a": b + c})


@given(EXPRESSIONS, VALUES)
def test_printing_reads_back_to_the_same_value(e: Expr, values: dict[str, Fraction]) -> None:
    """`3 x a^2 / b / 2` is the Python expression with x for * and ^ for **, over fractions."""
    text = re.sub(r"\b(\d+)", r"Fraction(\1)", str(e).replace(" x ", " * ").replace("^", "**"))
    assert eval(text, {"Fraction": Fraction}, dict(values)) == e.evaluate(values)


def test_printing_looks_like_a_rule() -> None:
    rows, tp = Expr.symbol("rows"), Expr.symbol("tp")
    assert str(2 * 36864 * 7168 * rows / tp) == "528482304 x rows / tp"
    assert str(rows * rows / (tp * tp) * Fraction(1, 32)) == "rows^2 / 32 / tp^2"
    assert str(3 / tp) == "3 / tp"
    assert str(ZERO) == "0"


@given(EXPRESSIONS, VALUES)
def test_bytes_round_each_term_up(e: Expr, values: dict[str, Fraction]) -> None:
    assert e.bytes(values) == sum(math.ceil(Expr((t,)).evaluate(values)) for t in e.terms)
    assert 0 <= e.bytes(values) - e.evaluate(values) < max(len(e.terms), 1)


@given(EXPRESSIONS)
def test_names_and_truth(e: Expr) -> None:
    assert bool(e) == (e != ZERO)
    assert e.names <= set(NAMES)
    if e.names:
        with pytest.raises(KeyError):
            e.evaluate({})


def test_floats_and_divisions_by_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="floats would lose bytes"):
        Expr.of(0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="division by a sum"):
        _ = ONE / ZERO
