"""Weights of experts as the kernel reads them: plain, or in blocks of fp8 with their scales."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from layouts.moe.kernel.operand import Operand
from layouts.stored import Stored


@dataclass(frozen=True)
class Factor:
    """Weights of the experts; `runs` stand side by side, as gate and up do.

    `scale` of each block of `block` columns and inputs where they are stored in blocks; `bias`. Rows are multiplied as
    `smaller` times less than they are, and their products as much larger.
    """

    values: Shaped[Array, "experts runs columns inputs"]
    scale: Float[Array, "experts runs column_blocks input_blocks"] | None = None
    bias: Float[Array, "experts runs columns"] | None = None
    block: tuple[int, int] = (0, 0)
    smaller: float = 1.0

    @property
    def kind(self) -> str:
        """Of product, as `tiles.toml` names it."""
        return f"{'gated' if self.values.shape[1] > 1 else 'single'}{'' if self.scale is None else '_fp8'}"

    @property
    def whole(self) -> tuple[int, int]:
        """Columns and inputs whose divisors have one scale."""
        columns, inputs = self.values.shape[2:]
        return math.gcd(columns, self.block[0]), math.gcd(inputs, self.block[1])

    def operand(self, dtype: Any) -> Operand:
        """What rows of a dtype are multiplied as."""
        return Operand(dtype) if self.smaller == 1.0 else Operand(jnp.float16, self.smaller)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Those that there are."""
        return tuple(part for part in (self.values, self.scale, self.bias) if part is not None)

    def of(self, refs: Sequence[Any]) -> "Factor":
        """The same of references of its arrays."""
        rest = list(refs[1:])
        scale, bias = (rest.pop(0) if part is not None else None for part in (self.scale, self.bias))
        return replace(self, values=refs[0], scale=scale, bias=bias)


def factor_of(weight: Any, bias: Array | None, dtype: Any) -> Factor:
    """That of a weight (experts, runs, columns, inputs) or (experts, columns, inputs), plain or stored, for rows of a
    dtype.

    What is stored in fp8 stays, if the kernel can address it; all else is brought to `dtype` before. Beside it bfloat16
    rows become float16, which has three bits more, made 16 times smaller: e4m3 becomes that in an eighth of the
    instructions that bfloat16 takes on an H200. Values up to 2^20 fit; from 2^-10 on none loses a bit, a smaller one
    moves by at most 2^-21.
    """
    experts, *runs, columns, inputs = weight.shape
    each = (experts, math.prod(runs), columns)
    offset = None if bias is None else bias.astype(jnp.float32).reshape(each)
    if not isinstance(weight, Stored) or weight.name != "fp8" or not within_reach(weight.payload):
        return Factor(weight.astype(dtype).reshape(*each, inputs), None, offset)
    scale = weight.scale.reshape(experts, math.prod(runs), *weight.scale.shape[-2:])
    block = (weight.block[-2], weight.block[-1])
    smaller = 16.0 if jnp.dtype(dtype) == jnp.bfloat16 else 1.0
    return Factor(weight.payload.reshape(*each, inputs), scale, offset, block, smaller)


def within_reach(values: Shaped[Array, "..."]) -> bool:
    """Whether the kernel can address an array.

    In arrays of up to 4 GiB the backend counts in 32 bits, with a sign (jax/_src/pallas/triton/lowering.py,
    `_compute_offsets_from_indices`): of values of a byte, those behind the first 2 GiB are out of reach.
    """
    return jnp.dtype(values.dtype).itemsize > 1 or not 2**31 < values.size <= 2**32
