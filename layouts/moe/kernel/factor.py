"""Weights of experts as the kernel reads them: plain, or in blocks of fp8 with their scales."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from layouts.stored import Stored


@dataclass(frozen=True)
class Factor:
    """Weights of the experts; `runs` stand side by side, as gate and up do.

    `scale` of each block of `block` columns and inputs where they are stored in blocks; `bias`.
    """

    values: Shaped[Array, "experts runs columns inputs"]
    scale: Float[Array, "experts runs column_blocks input_blocks"] | None = None
    bias: Float[Array, "experts runs columns"] | None = None
    block: tuple[int, int] = (0, 0)

    @property
    def whole(self) -> tuple[int, int]:
        """Columns and inputs whose divisors have one scale."""
        columns, inputs = self.values.shape[2:]
        return math.gcd(columns, self.block[0]), math.gcd(inputs, self.block[1])

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Those that there are."""
        return tuple(part for part in (self.values, self.scale, self.bias) if part is not None)

    def of(self, refs: Sequence[Any]) -> "Factor":
        """The same of references of its arrays."""
        rest = list(refs[1:])
        scale, bias = (rest.pop(0) if part is not None else None for part in (self.scale, self.bias))
        return replace(self, values=refs[0], scale=scale, bias=bias)


def factor_of(weight: Any, bias: Array | None, dtype: jax.typing.DTypeLike) -> Factor:
    """That of a weight (experts, runs, columns, inputs) or (experts, columns, inputs), plain or stored.

    What is stored in fp8 stays; other formats are brought to `dtype` before.
    """
    experts, *runs, columns, inputs = weight.shape
    each = (experts, math.prod(runs), columns)
    offset = None if bias is None else bias.astype(jnp.float32).reshape(each)
    if not isinstance(weight, Stored) or weight.name != "fp8":
        return Factor(weight.astype(dtype).reshape(*each, inputs), None, offset)
    scale = weight.scale.reshape(experts, math.prod(runs), *weight.scale.shape[-2:])
    return Factor(weight.payload.reshape(*each, inputs), scale, offset, (weight.block[-2], weight.block[-1]))
