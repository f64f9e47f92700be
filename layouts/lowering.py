"""From expressions to arrays: every formula of a model evaluated at once, for one layout or under `vmap`.

A hundred formulas inlined one by one compile for ten seconds; the same formulas as rows of one table compile in a
fraction of one, and differentiate the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from hw.arithmetic import Arithmetic, Exact
from layouts.expression import Expr, Powers

_ONE: Final = "1"  # the quantity that pads a product


class Vector(eqx.Module):
    """Named quantities stacked once, so that every table of expressions reads the same array."""

    names: tuple[str, ...] = eqx.field(static=True)
    numbers: Float[Array, " quantities"]

    def __init__(self, values: Mapping[str, ArrayLike]):
        self.names = (_ONE, *values)
        self.numbers = jnp.stack([jnp.ones(()), *(jnp.asarray(v, dtype=float) for v in values.values())])

    def pick(self, names: tuple[str, ...]) -> Float[Array, " names"]:
        """The quantities of these names, in their order; a KeyError names those that have no value."""
        place = {name: i for i, name in enumerate(self.names)}
        missing = [name for name in names if name not in place]
        if missing:
            raise KeyError(f"quantities without a value: {', '.join(missing)}")
        return self.numbers[np.array([place[name] for name in names])]


Values = Mapping[str, ArrayLike] | Vector


class Lowered(eqx.Module):
    """A table of expressions over named quantities.

    A term is a rational coefficient times one of a few distinct products, kept as numerator and denominator so that
    whole bytes stay whole. Equal expressions are computed once, and expressions of as many terms together: most have
    one, and padding them to the longest would triple the work.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    numerators: Int[np.ndarray, "products factors"]
    denominators: Int[np.ndarray, "products factors"]
    groups: tuple["TermGroup", ...]
    order: Int[np.ndarray, " expressions"]

    def __init__(self, expressions: Sequence[Expr]):
        products = sorted({powers for e in expressions for powers, _ in e.terms} | {()})
        self.names = (_ONE, *sorted({name for e in expressions for name in e.names}))
        index = {name: i for i, name in enumerate(self.names)}
        self.numerators = _factors(products, index, sign=1)
        self.denominators = _factors(products, index, sign=-1)
        distinct = sorted(set(expressions), key=lambda e: (len(e.terms), e.terms))
        self.groups = tuple(
            TermGroup([e for e in distinct if len(e.terms) == width], products)
            for width in sorted({len(e.terms) for e in distinct})
        )
        place = {e: i for i, e in enumerate(distinct)}
        self.order = np.array([place[e] for e in expressions], np.int64)

    def evaluate(self, values: Values) -> Float[Array, " expressions"]:
        """Real values: FLOPs, bytes, messages of a possibly relaxed layout."""
        quantities = self._stack(values, np.float64)
        products = quantities[self.numerators].prod(axis=1) / quantities[self.denominators].prod(axis=1)
        sums = [(products[g.product] * (g.above / g.below)).sum(axis=1) for g in self.groups]
        return jnp.concatenate(sums)[self.order]

    def whole(self, values: Values) -> Int[Array, " expressions"]:
        """Whole bytes of a valid layout: integer arithmetic throughout, each term rounded up as an allocation is."""
        quantities = self._stack(values, np.int64)
        above, below = quantities[self.numerators].prod(axis=1), quantities[self.denominators].prod(axis=1)
        sums = [(-(-(above[g.product] * g.above) // (below[g.product] * g.below))).sum(axis=1) for g in self.groups]
        return jnp.concatenate(sums)[self.order]

    def bytes(self, ar: Arithmetic, values: Values) -> Float[Array, " expressions"]:
        """Bytes: whole in the exact arithmetic (float64 holds them up to 2^53), real in the smooth one."""
        return self.whole(values).astype(jnp.float64) if isinstance(ar, Exact) else self.evaluate(values)

    def _stack(self, values: Values, dtype: type[np.generic]) -> Array:
        vector = values if isinstance(values, Vector) else Vector(values)
        numbers = vector.pick(self.names)
        # a whole quantity may have come out of a power or a logarithm one ulp off
        return jnp.rint(numbers).astype(dtype) if np.issubdtype(dtype, np.integer) else numbers


class TermGroup(eqx.Module):
    """Expressions of one number of terms: for each term its product and its coefficient above / below."""

    product: Int[np.ndarray, "expressions terms"]
    above: Int[np.ndarray, "expressions terms"]
    below: Int[np.ndarray, "expressions terms"]

    def __init__(self, expressions: Sequence[Expr], products: Sequence[Powers]):
        place = {powers: i for i, powers in enumerate(products)}
        self.product = _table([[place[powers] for powers, _ in e.terms] for e in expressions])
        self.above = _table([[c.numerator for _, c in e.terms] for e in expressions])
        self.below = _table([[c.denominator for _, c in e.terms] for e in expressions])


def _table(rows: Sequence[Sequence[int]]) -> Int[np.ndarray, "expressions terms"]:
    return np.array(rows, np.int64).reshape(len(rows), -1)


def _factors(products: Sequence[Powers], index: Mapping[str, int], sign: int) -> Int[np.ndarray, "products factors"]:
    """Indices of the quantities that a product multiplies (sign 1) or divides by (sign -1), padded with one."""
    lists = [[index[n] for n, p in powers for _ in range(max(sign * p, 0))] for powers in products]
    width = max(map(len, lists)) or 1
    return np.array([row + [0] * (width - len(row)) for row in lists], np.int64)
