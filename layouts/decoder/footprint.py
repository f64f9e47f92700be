"""What a program keeps on a device: its part of the weights and of the caches, before anything is made."""

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from layouts.decoder.program import Program, StageProgram


def bytes_a_device(program: Program, dtype: jax.typing.DTypeLike) -> int:
    """Bytes of weights and caches, all of them in `dtype` but float32 states and their rings, on a device of the stage
    that has the most. What a step needs beside them is not in it."""
    return max(_of_stage(stage, dtype) for stage in program.stages)


def _of_stage(stage: StageProgram, dtype: jax.typing.DTypeLike) -> int:
    weights = jax.tree.map(
        lambda place, spec: _bytes(place.shape, dtype, stage.sharding(spec)), stage.places, stage.weight_specs()
    )
    caches = jax.tree.map(lambda held: _bytes(held.shape, held.dtype, held.sharding), stage.described_caches(dtype))
    return sum(jax.tree.leaves((weights, caches)))


def _bytes(shape: Iterable[int], dtype: Any, sharding: NamedSharding) -> int:
    return math.prod(sharding.shard_shape(tuple(shape))) * jnp.dtype(dtype).itemsize
