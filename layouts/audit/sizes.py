"""Bytes of arrays and FLOPs of products, from the shapes of a traced equation."""

import math
from typing import Any

import jax.numpy as jnp


def bits(dtype: Any) -> int:
    """Bits of one value, four of an int4 or a float4 (of which two share a byte)."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return jnp.iinfo(dtype).bits if jnp.issubdtype(dtype, jnp.integer) else jnp.dtype(dtype).itemsize * 8


def array_bytes(aval: Any) -> int:
    """Bytes of an array, rounded up to whole ones."""
    return -(-math.prod(aval.shape) * bits(aval.dtype) // 8)


def dot_general(equation: Any) -> int:
    """2 x batch x m x n x k: a multiply and an add for each term of each value of the result."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2 * _values(equation) * _along(equation.invars[0], contracted)


def ragged_dot_general(equation: Any) -> int:
    """2 x m x k x n for all m rows that there is room for, whichever groups they belong to.

    Where the groups divide the contracted dimension (a gradient of weights), it is 2 x m x k x n too, k being the
    contracted rows of all groups together.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    terms = _values(equation) * _along(equation.invars[0], contracted)
    by_group = set(numbers.lhs_ragged_dimensions) <= set(contracted)
    return 2 * terms // (equation.invars[2].aval.shape[-1] if by_group else 1)


def convolution(equation: Any) -> int:
    """2 x values of the result x terms of each: kernel positions x input channels of its group.

    Positions that fall on padding or on a dilated input's gaps count, as in a dense product.
    """
    kernel = equation.invars[1].aval.shape
    out_channels = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2 * _values(equation) * math.prod(kernel) // out_channels


DOTS = {
    "dot_general": dot_general,
    "scaled_dot": dot_general,  # its scales follow as further operands
    "ragged_dot_general": ragged_dot_general,
    "conv_general_dilated": convolution,
}


def _values(equation: Any) -> int:
    return math.prod(equation.outvars[0].aval.shape)


def _along(operand: Any, dimensions: Any) -> int:
    return math.prod(operand.aval.shape[d] for d in dimensions)
