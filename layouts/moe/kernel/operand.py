"""What rows are multiplied as."""

from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
from jaxtyping import Array, Float

_LARGEST: Final = 65504.0  # of float16


@dataclass(frozen=True)
class Operand:
    """Values of `dtype` that are `smaller` times less than the rows that they stand for."""

    dtype: Any
    smaller: float = 1.0

    def of(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Rows as this operand."""
        if self.smaller == 1.0:
            return x.astype(self.dtype)
        return jnp.clip(x.astype(jnp.float32) / self.smaller, -_LARGEST, _LARGEST).astype(self.dtype)
