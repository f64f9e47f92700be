"""From expressions to arrays: every formula of a model evaluated at once, for one layout or under `vmap`.

A hundred formulas inlined one by one compile for ten seconds; the same formulas as rows of one table compile in a
fraction of one, and differentiate the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hw.arithmetic import Arithmetic, Exact
from layouts.expression import Expr, Powers

_ONE: Final = "1"  # the quantity that pads a product


class Lowered(eqx.Module):
    """A table of expressions over named quantities.

    Every expression is a padded row of terms; a term is a rational coefficient times one of a few distinct products,
    kept as numerator and denominator so that whole bytes stay whole.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    numerators: Int[np.ndarray, "products factors"]
    denominators: Int[np.ndarray, "products factors"]
    product: Int[np.ndarray, "expressions terms"]
    above: Int[np.ndarray, "expressions terms"]
    below: Int[np.ndarray, "expressions terms"]

    def __init__(self, expressions: Sequence[Expr]):
        products = sorted({powers for e in expressions for powers, _ in e.terms} | {()})
        self.names = (_ONE, *sorted({name for e in expressions for name in e.names}))
        index = {name: i for i, name in enumerate(self.names)}
        self.numerators = _factors(products, index, sign=1)
        self.denominators = _factors(products, index, sign=-1)
        width = max([len(e.terms) for e in expressions], default=0) or 1
        shape = (len(expressions), width)
        self.product, self.above = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.below = np.ones(shape, np.int64)
        for row, expression in enumerate(expressions):
            for column, (powers, coefficient) in enumerate(expression.terms):
                self.product[row, column] = products.index(powers)
                self.above[row, column] = coefficient.numerator
                self.below[row, column] = coefficient.denominator

    def evaluate(self, values: Mapping[str, Array]) -> Float[Array, " expressions"]:
        """Real values: FLOPs, bytes, messages of a possibly relaxed layout."""
        quantities = self._stack(values, jnp.float64)
        above = quantities[self.numerators].prod(axis=1) / quantities[self.denominators].prod(axis=1)
        return (above[self.product] * (self.above / self.below)).sum(axis=1)

    def whole(self, values: Mapping[str, Array]) -> Int[Array, " expressions"]:
        """Whole bytes of a valid layout: integer arithmetic throughout, each term rounded up as an allocation is."""
        quantities = self._stack(values, jnp.int64)
        above = quantities[self.numerators].prod(axis=1)[self.product] * self.above
        below = quantities[self.denominators].prod(axis=1)[self.product] * self.below
        return (-(-above // below)).sum(axis=1)

    def bytes(self, ar: Arithmetic, values: Mapping[str, Array]) -> Float[Array, " expressions"]:
        """Bytes: whole in the exact arithmetic (float64 holds them up to 2^53), real in the smooth one."""
        return self.whole(values).astype(jnp.float64) if isinstance(ar, Exact) else self.evaluate(values)

    def _stack(self, values: Mapping[str, Array], dtype: jnp.dtype) -> Array:
        missing = [n for n in self.names[1:] if n not in values]
        if missing:
            raise KeyError(f"quantities without a value: {', '.join(missing)}")
        numbers = jnp.stack([jnp.ones(()), *(jnp.asarray(values[n], dtype=float) for n in self.names[1:])])
        # a whole quantity may have come out of a power or a logarithm one ulp off
        return jnp.rint(numbers).astype(dtype) if jnp.issubdtype(dtype, jnp.integer) else numbers


def _factors(products: Sequence[Powers], index: Mapping[str, int], sign: int) -> Int[np.ndarray, "products factors"]:
    """Indices of the quantities that a product multiplies (sign 1) or divides by (sign -1), padded with one."""
    lists = [[index[n] for n, p in powers for _ in range(max(sign * p, 0))] for powers in products]
    width = max(map(len, lists)) or 1
    return np.array([row + [0] * (width - len(row)) for row in lists], np.int64)
