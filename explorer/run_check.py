"""A layout's logits held against those of one device: what a right program may differ by, and which one is wrong."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from explorer.documents import Document
from layouts.generation import Session

# Largest difference of a logit over the largest logit. Another batch or layout adds in another order; norms of small
# values and recurrent states make up to fifty times as much of a float32's rounding, bf16 rounds in every layer.
BOUNDS: Final = {"float32": 1e-4, "bfloat16": 5e-2}
_UNRELATED: Final = 0.5  # logits that have nothing to do with each other are further apart

Logits = Float[np.ndarray, "requests tokens vocab"]


@dataclass(frozen=True)
class Checked:
    """The layout's logits against those of one device; differences over the largest logit.

    In float32 all tokens must keep the bound, and greedy text be the same. In bfloat16 a router or an index that is
    near a tie chooses otherwise by a rounding, and moves the logits of that token by any amount: there half of the
    tokens of every request must keep it. `error` is the largest difference, `typical` that of half of a request's
    tokens, of the request that is furthest off; `beyond` of all `tokens` are further off than `bound`. `conditioned`:
    the bound is how far one device is from itself with weights moved by a rounding, where that is more than the
    dtype's.
    """

    dtype: str
    error: float
    typical: float
    beyond: int
    tokens: int
    bound: float
    same_text: bool
    conditioned: bool = False

    @property
    def passes(self) -> bool:
        if not math.isfinite(self.error):
            return False
        if self.dtype == "float32":
            return self.error <= self.bound and self.same_text
        return self.typical <= self.bound

    def document(self) -> Document:
        """The `check` of a `run/1` document; JSON has no NaN."""
        values = {name: value for name, value in vars(self).items() if name != "dtype"}
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        return {**finite, "passes": self.passes}


def checked(
    found: Logits, expected: Logits, same_text: Bool[np.ndarray, ""], dtype: str, moved: Callable[[], Logits]
) -> Checked:
    """The verdict on `found`. `moved`: those of one device whose weights were moved by a rounding, asked for only where
    half of a request's tokens do not keep the bound in bfloat16."""
    off, bound = _off(found, expected), BOUNDS[dtype]
    typical = _typical(off)
    conditioned = dtype != "float32" and bound < typical < math.inf
    if conditioned:
        bound = max(bound, min(_typical(_off(moved(), expected)), _UNRELATED))
    beyond = int((~(off <= bound)).sum())
    return Checked(dtype, float(off.max()), typical, beyond, off.size, bound, bool(same_text), conditioned)


def move_weights(session: Session) -> None:
    """Every weight of a session moved by a rounding, up or down at random, in place."""
    number = iter(range(1 << 30))
    session.held = [[_moved(leaf, next(number)) for leaf in leaves] for leaves in session.held]


def _moved(leaf: jax.Array, number: int) -> jax.Array:
    return _rounded_otherwise(leaf, number) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


@jax.jit
def _rounded_otherwise(leaf: jax.Array, number: int) -> jax.Array:
    sign = jax.random.rademacher(jax.random.key(number), leaf.shape, jnp.float32)
    return (leaf.astype(jnp.float32) * (1 + sign * (float(jnp.finfo(leaf.dtype).eps) / 2))).astype(leaf.dtype)


def _off(found: Logits, expected: Logits) -> Float[np.ndarray, "requests tokens"]:
    """Largest difference of a token's logits, over the largest logit of all."""
    return np.abs(found - expected).max(axis=-1) / np.abs(expected).max()


def _typical(off: Float[np.ndarray, "requests tokens"]) -> float:
    """What half of the tokens of every request keep: the lower median, of the request that is furthest off."""
    return float(np.sort(off, axis=1)[:, (off.shape[1] - 1) // 2].max())
