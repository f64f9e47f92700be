"""Sums of products over named quantities: the form in which shapes, work and bytes are written once.

`2 * 36864 * 7168 * ROWS / ATTN_TP` is an `Expr`. It is read in several ways: evaluated over Python integers (the
oracle of the byte tests), lowered to arrays and evaluated for a whole batch of layouts in either arithmetic, and
printed as the rule beside a figure.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Final

Powers = tuple[tuple[str, int], ...]
Number = int | Fraction


@dataclass(frozen=True)
class Expr:
    """A polynomial with rational coefficients; powers may be negative, quantities are strictly positive."""

    terms: tuple[tuple[Powers, Fraction], ...]

    @classmethod
    def of(cls, value: "Expr | Number") -> "Expr":
        if isinstance(value, Expr):
            return value
        if not isinstance(value, Rational):
            raise TypeError(f"an expression takes integers and fractions, not {value!r}: floats would lose bytes")
        return cls._collect({(): Fraction(value)})

    @classmethod
    def symbol(cls, name: str) -> "Expr":
        return cls((((((name, 1),)), Fraction(1)),))

    @classmethod
    def _collect(cls, terms: Mapping[Powers, Fraction]) -> "Expr":
        return cls(tuple(sorted((p, c) for p, c in terms.items() if c != 0)))

    def __add__(self, other: "Expr | Number") -> "Expr":
        total = dict(self.terms)
        for powers, coefficient in Expr.of(other).terms:
            total[powers] = total.get(powers, Fraction(0)) + coefficient
        return Expr._collect(total)

    def __mul__(self, other: "Expr | Number") -> "Expr":
        total: dict[Powers, Fraction] = {}
        for p, c in self.terms:
            for q, d in Expr.of(other).terms:
                powers = _merge(p, q)
                total[powers] = total.get(powers, Fraction(0)) + c * d
        return Expr._collect(total)

    def __truediv__(self, other: "Expr | Number") -> "Expr":
        other = Expr.of(other)
        if len(other.terms) != 1:
            raise TypeError(f"division by a sum ({other}) is not an expression: name the sum as a quantity")
        ((powers, coefficient),) = other.terms
        inverse = tuple((name, -power) for name, power in powers)
        return self * Expr._collect({inverse: 1 / coefficient})

    __radd__ = __add__
    __rmul__ = __mul__

    def __rtruediv__(self, other: Number) -> "Expr":
        return Expr.of(other) / self

    def __bool__(self) -> bool:
        return bool(self.terms)

    def substitute(self, replacements: "Mapping[str, Expr]") -> "Expr":
        """Every named quantity replaced by an expression (by a product, where it divides); others stay."""
        return total(
            Expr.of(coefficient) * _product(_power(replacements.get(n, Expr.symbol(n)), p) for n, p in powers)
            for powers, coefficient in self.terms
        )

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for powers, _ in self.terms for name, _ in powers)

    def evaluate(self, values: Mapping[str, int | Fraction]) -> Fraction:
        """Exact value for rational quantities; a missing name is a KeyError."""
        total = Fraction(0)
        for powers, coefficient in self.terms:
            total += coefficient * math.prod((Fraction(values[n]) ** p for n, p in powers), start=Fraction(1))
        return total

    def bytes(self, values: Mapping[str, int | Fraction]) -> int:
        """Whole bytes: each term is rounded up, as an allocation would be."""
        return sum(math.ceil(Expr((term,)).evaluate(values)) for term in self.terms)

    def __str__(self) -> str:
        return " + ".join(_term_text(p, c) for p, c in self.terms) or "0"


ZERO: Final = Expr(())
ONE: Final = Expr.of(1)


def total(parts: Iterable[Expr]) -> Expr:
    """Sum of expressions; zero for none."""
    return sum(parts, start=ZERO)


def _product(factors: Iterable[Expr]) -> Expr:
    result = ONE
    for factor in factors:
        result = result * factor
    return result


def _power(base: Expr, power: int) -> Expr:
    return _product([base] * power) if power >= 0 else ONE / _product([base] * -power)


def _merge(a: Powers, b: Powers) -> Powers:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted((n, p) for n, p in powers.items() if p != 0))


def _term_text(powers: Powers, coefficient: Fraction) -> str:
    above = [_power_text(n, p) for n, p in powers if p > 0]
    below = [_power_text(n, -p) for n, p in powers if p < 0]
    if coefficient.numerator != 1 or not above:
        above.insert(0, f"{coefficient.numerator}")
    if coefficient.denominator != 1:
        below.insert(0, f"{coefficient.denominator}")
    return " x ".join(above) + "".join(f" / {b}" for b in below)


def _power_text(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"
