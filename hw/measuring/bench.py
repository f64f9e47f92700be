"""One thing to time: what it asks for in the words of `hw.work`, and how to run it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from hw.work import Collective, Work

Turn = Callable[[Any, Any], Any]


def nothing(key: jax.Array) -> tuple[()]:
    """Of a bench that has no arguments of a kind."""
    return ()


@dataclass(frozen=True)
class Bench:
    """Kernels that run one after the other, or an exchange, with what they ask for in `asks`.

    `turn(held, own)` does it once. Where it has several forms, their turns by name, the first that compiles is timed.
    `held(key)` and `own(key)` draw its arguments, both traced: `held` is the same in every turn, as activations that
    the op before has just written; `own` is drawn for several turns, as the weights and caches of layer after layer,
    which come from memory and not from a cache. Where it is `carried`, the result of a turn is what the next one holds,
    for an op that may write where it read. With a `mesh` of several devices all three are those of one rank, and `turn`
    runs inside a `shard_map` over it.
    """

    name: str
    asks: Work | Collective
    turn: Turn | Mapping[str, Turn]
    held: Callable[[jax.Array], Any] = nothing
    own: Callable[[jax.Array], Any] = nothing
    mesh: Mesh | None = None
    carried: bool = False

    @property
    def forms(self) -> list[tuple[str | None, Turn]]:
        """The turns that may be timed, in the order in which they are tried; None where there is but one."""
        return [(None, self.turn)] if callable(self.turn) else [(form, turn) for form, turn in self.turn.items()]

    @property
    def own_bytes(self) -> int:
        """Of one turn's own arguments, on a device."""
        return size_of(jax.eval_shape(self.own, jax.random.key(0)))


def size_of(tree: Any) -> int:
    """Bytes of the arrays of a tree, or of what describes them."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def normal(
    key: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.bfloat16, scale: float = 1.0
) -> jax.Array:
    """Random values: on zeros, or where few bits differ, a matrix product runs faster than on what a model computes."""
    return (jax.random.normal(key, shape, jnp.bfloat16) * jnp.bfloat16(scale)).astype(dtype)


def weight(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random bf16 values whose products with rows as wide as the last dimension are of the size of these rows."""
    return normal(key, shape, scale=1.0 / math.sqrt(shape[-1]))
